# Tables over all runs, and figures, which depend on tables only.


rule tables:
    input:
        losses=plan.paths("loss", 0),
        runs=plan.paths("train", 0),
        # Long: followed through run.json, not through their times.
        metrics=ancient(plan.paths("train", 1)),
    output:
        losses=plan.path("tables", 0),
        training=plan.path("tables", 1),
        losses_csv=report(
            f"{plan.root}/tables/losses.csv",
            category="Loss",
            labels={"table": "all losses"},
            caption="../report/losses.rst",
        ),
        training_csv=f"{plan.root}/tables/training.csv",
    log:
        f"{plan.root}/logs/tables.log",
    conda:
        "../../envs/seqarch.yaml"
    params:
        spec=plan.spec("tables"),
        code=plan.code("tables"),
        expects=plan.expects,
    message:
        "Gather the losses and the training curves of all runs"
    shell:
        "python -m seqarch.cli.tables --spec {params.spec:q} --code {params.code} --expects {params.expects:q}"
        " --losses {input.losses:q} --metrics {input.metrics:q}"
        " --out-losses {output.losses:q} --out-training {output.training:q} > {log:q} 2>&1"


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
    resources:
        mem_mb=lambda wildcards, attempt: 8000 * attempt,
    params:
        spec=plan.spec("equal_loss"),
        code=plan.code("equal_loss"),
        expects=plan.expects,
        stem=f"{plan.root}/tables/equal_loss",
    message:
        "Compare out-of-domain losses at equal in-domain loss"
    shell:
        "python -m seqarch.cli.equal_loss --spec {params.spec:q} --code {params.code}"
        " --expects {params.expects:q} --docs {input.docs:q} --out {params.stem:q} > {log:q} 2>&1"


rule figure_corpus:
    input:
        tables=plan.path("corpus_table"),
    output:
        record=plan.path("figure_corpus"),
        csv=f"{plan.root}/figures/corpus.csv",
        images=report(
            plan.images("corpus"),
            category="Corpus",
            labels={"figure": "size of the domains"},
            caption="../report/corpus.rst",
        ),
    log:
        f"{plan.root}/logs/figures/corpus.log",
    conda:
        "../../envs/seqarch.yaml"
    params:
        spec=plan.spec("figure_corpus"),
        code=plan.code("figure_corpus"),
        expects=plan.expects,
        stem=f"{plan.root}/figures/corpus",
    message:
        "Draw the corpus"
    shell:
        "python -m seqarch.cli.figure --spec {params.spec:q} --code {params.code} --expects {params.expects:q}"
        " --table {input.tables:q} --out {params.stem:q} > {log:q} 2>&1"


use rule figure_corpus as figure_training with:
    input:
        tables=plan.path("tables", 1),
    output:
        record=plan.path("figure_training"),
        csv=f"{plan.root}/figures/training.csv",
        images=report(
            plan.images("training"),
            category="Training",
            labels={"figure": "training and validation loss"},
            caption="../report/training.rst",
        ),
    log:
        f"{plan.root}/logs/figures/training.log",
    params:
        spec=plan.spec("figure_training"),
        code=plan.code("figure_training"),
        expects=plan.expects,
        stem=f"{plan.root}/figures/training",
    message:
        "Draw the training curves"


use rule figure_corpus as figure_ood_vs_id with:
    input:
        tables=[plan.path("tables", 0), plan.path("corpus_table")],
    output:
        record=plan.path("figure_ood_vs_id"),
        csv=f"{plan.root}/figures/ood_vs_id.csv",
        images=report(
            plan.images("ood_vs_id"),
            category="Loss",
            labels={"figure": "out-of-domain against in-domain loss"},
            caption="../report/ood_vs_id.rst",
        ),
    log:
        f"{plan.root}/logs/figures/ood_vs_id.log",
    params:
        spec=plan.spec("figure_ood_vs_id"),
        code=plan.code("figure_ood_vs_id"),
        expects=plan.expects,
        stem=f"{plan.root}/figures/ood_vs_id",
    message:
        "Draw out-of-domain against in-domain loss"


use rule figure_corpus as figure_equal_loss with:
    input:
        tables=plan.path("equal_loss"),
    output:
        record=plan.path("figure_equal_loss"),
        csv=f"{plan.root}/figures/equal_loss.csv",
        images=report(
            plan.images("equal_loss"),
            category="Loss",
            labels={"figure": "out-of-domain loss at equal in-domain loss"},
            caption="../report/equal_loss.rst",
        ),
    log:
        f"{plan.root}/logs/figures/equal_loss.log",
    params:
        spec=plan.spec("figure_equal_loss"),
        code=plan.code("figure_equal_loss"),
        expects=plan.expects,
        stem=f"{plan.root}/figures/equal_loss",
    message:
        "Draw out-of-domain loss at equal in-domain loss"
