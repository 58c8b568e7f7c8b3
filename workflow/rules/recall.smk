# Recall from scratch: small models learn synthetic tasks. One job trains and scores one architecture on one task.


rule recall:
    output:
        scores=plan.path("recall", 0),
        sweep=plan.path("recall", 1),
    log:
        f"{plan.root}/logs/recall/{{task}}/{{learner}}.log",
    benchmark:
        f"{plan.root}/benchmarks/recall/{{task}}/{{learner}}.tsv"
    # A failed attempt leaves its runs in work/: the next one goes on from there.
    retries: 2
    conda:
        "../../envs/seqarch.yaml"
    threads: plan.recall.threads
    params:
        spec=plan.spec("recall"),
        code=plan.code("recall"),
        expects=plan.expects,
        work=f"{plan.root}/work",
        folder=plan.folder(f"{plan.root}/evaluation/recall/{{task}}/{{learner}}"),
    message:
        "Train and score {wildcards.learner} on {wildcards.task}"
    shell:
        "python -m seqarch.cli.recall --spec {params.spec:q} --code {params.code} --expects {params.expects:q}"
        " --work {params.work:q} --out {params.folder:q} > {log:q} 2>&1"


rule recall_table:
    input:
        scores=plan.paths("recall", 0),
        sweeps=plan.paths("recall", 1),
    output:
        parquet=plan.path("recall_table", 0),
        sweep=plan.path("recall_table", 1),
        csv=report(
            f"{plan.root}/tables/recall.csv",
            category="Recall",
            labels={"table": "recall from scratch"},
            caption="../report/recall_table.rst",
        ),
        sweep_csv=report(
            f"{plan.root}/tables/recall_sweep.csv",
            category="Recall",
            labels={"table": "learning rates tried and chosen"},
            caption="../report/recall_sweep.rst",
        ),
    log:
        f"{plan.root}/logs/recall_table.log",
    conda:
        "../../envs/seqarch.yaml"
    params:
        spec=plan.spec("recall_table"),
        code=plan.code("recall_table"),
        expects=plan.expects,
        stem=plan.stem,
    message:
        "Gather the recall scores"
    shell:
        "python -m seqarch.cli.recall_table --spec {params.spec:q} --code {params.code}"
        " --expects {params.expects:q} --scores {input.scores:q} --sweeps {input.sweeps:q}"
        " --out {params.stem:q} > {log:q} 2>&1"
