# Tables over all runs. Each is gathered by a rule of its own, so that a figure is redrawn only if the runs'
# results that it shows were made again.


rule losses_table:
    input:
        plan.paths("loss", 0),
    output:
        parquet=plan.path("losses_table"),
        csv=report(
            f"{plan.root}/tables/losses.csv",
            category="Loss",
            labels={"table": "all losses"},
            caption="../report/losses.rst",
        ),
    log:
        f"{plan.root}/logs/losses_table.log",
    conda:
        "../../envs/seqarch.yaml"
    params:
        spec=plan.spec("losses_table"),
        code=plan.code("losses_table"),
        expects=plan.expects,
    message:
        "Gather the losses of all runs"
    shell:
        "python -m seqarch.cli.tables --spec {params.spec:q} --code {params.code} --expects {params.expects:q}"
        " --losses {input:q} --out-losses {output.parquet:q} > {log:q} 2>&1"


rule positions_table:
    input:
        plan.paths("loss", 2),
    output:
        parquet=plan.path("positions_table"),
        csv=f"{plan.root}/tables/positions.csv",
    log:
        f"{plan.root}/logs/positions_table.log",
    conda:
        "../../envs/seqarch.yaml"
    params:
        spec=plan.spec("positions_table"),
        code=plan.code("positions_table"),
        expects=plan.expects,
    message:
        "Gather the losses by position of all runs"
    shell:
        "python -m seqarch.cli.tables --spec {params.spec:q} --code {params.code} --expects {params.expects:q}"
        " --positions {input:q} --out-positions {output.parquet:q} > {log:q} 2>&1"


rule training_table:
    input:
        runs=plan.paths("train", 0),
        # Long: followed through run.json, not through their times.
        metrics=ancient(plan.paths("train", 1)),
    output:
        parquet=plan.path("training_table"),
        csv=f"{plan.root}/tables/training.csv",
    log:
        f"{plan.root}/logs/training_table.log",
    conda:
        "../../envs/seqarch.yaml"
    params:
        spec=plan.spec("training_table"),
        code=plan.code("training_table"),
        expects=plan.expects,
    message:
        "Gather the training curves of all runs"
    shell:
        "python -m seqarch.cli.tables --spec {params.spec:q} --code {params.code} --expects {params.expects:q}"
        " --metrics {input.metrics:q} --out-training {output.parquet:q} > {log:q} 2>&1"


rule learning_rates:
    input:
        plan.paths("choice"),
    output:
        parquet=plan.path("learning_rates"),
        csv=report(
            f"{plan.root}/tables/learning_rates.csv",
            category="Training",
            labels={"table": "learning rates tried and chosen"},
            caption="../report/learning_rates.rst",
        ),
    log:
        f"{plan.root}/logs/learning_rates.log",
    conda:
        "../../envs/seqarch.yaml"
    params:
        spec=plan.spec("learning_rates"),
        code=plan.code("learning_rates"),
        expects=plan.expects,
        stem=plan.stem,
    message:
        "Gather the learning rates that were tried"
    shell:
        "python -m seqarch.cli.learning_rates --spec {params.spec:q} --code {params.code}"
        " --expects {params.expects:q} --choices {input:q} --out {params.stem:q} > {log:q} 2>&1"


rule unigram:
    input:
        train=plan.token_manifests("train", plan.trained_domains()),
        sets=plan.paths("evaluation_set"),
    output:
        parquet=plan.path("unigram"),
        csv=f"{plan.root}/tables/unigram.csv",
    log:
        f"{plan.root}/logs/unigram.log",
    conda:
        "../../envs/seqarch.yaml"
    params:
        spec=plan.spec("unigram"),
        code=plan.code("unigram"),
        expects=plan.expects,
        sets=plan.folder(f"{plan.root}/evaluation/sets"),
        stem=plan.stem,
    message:
        "Score what knows nothing but token frequencies"
    shell:
        "python -m seqarch.cli.unigram --spec {params.spec:q} --code {params.code} --expects {params.expects:q}"
        " --manifests {input.train:q} --sets {params.sets:q} --out {params.stem:q} > {log:q} 2>&1"


rule equal_loss:
    input:
        domains=plan.paths("loss", 0),
        # Long: they change together with the table of domains.
        docs=ancient(plan.paths("loss", 1)),
    output:
        parquet=plan.path("equal_loss"),
        csv=report(
            f"{plan.root}/tables/equal_loss.csv",
            category="Loss",
            labels={"table": "out-of-domain loss at equal in-domain loss"},
            caption="../report/equal_loss.rst",
        ),
    log:
        f"{plan.root}/logs/equal_loss.log",
    benchmark:
        f"{plan.root}/benchmarks/equal_loss.tsv"
    conda:
        "../../envs/seqarch.yaml"
    params:
        spec=plan.spec("equal_loss"),
        code=plan.code("equal_loss"),
        expects=plan.expects,
        stem=plan.stem,
    message:
        "Compare out-of-domain losses at equal in-domain loss"
    shell:
        "python -m seqarch.cli.equal_loss --spec {params.spec:q} --code {params.code} --expects {params.expects:q}"
        " --docs {input.docs:q} --out {params.stem:q} > {log:q} 2>&1"


rule equal_loss_sensitivity:
    input:
        domains=plan.paths("loss", 0),
        docs=ancient(plan.paths("loss", 1)),
        train=plan.token_manifests("train", plan.experiment.in_domains),
    output:
        parquet=plan.path("equal_loss_sensitivity"),
        csv=report(
            f"{plan.root}/tables/equal_loss_sensitivity.csv",
            category="Loss",
            labels={"table": "the same comparison by other methods"},
            caption="../report/equal_loss_sensitivity.rst",
        ),
    log:
        f"{plan.root}/logs/equal_loss_sensitivity.log",
    conda:
        "../../envs/seqarch.yaml"
    params:
        spec=plan.spec("equal_loss_sensitivity"),
        code=plan.code("equal_loss_sensitivity"),
        expects=plan.expects,
        stem=plan.stem,
    message:
        "Compare in other ways at equal in-domain loss"
    shell:
        "python -m seqarch.cli.sensitivity --spec {params.spec:q} --code {params.code} --expects {params.expects:q}"
        " --docs {input.docs:q} --manifests {input.train:q} --out {params.stem:q} > {log:q} 2>&1"
