# Downstream tasks through lm_eval: section `evaluation.downstream`; without it none of these rules has a job.


rule downstream:
    input:
        run=plan.path("train", 0),
        # Large: followed through run.json, not through their times.
        checkpoints=ancient(f"{plan.run}/checkpoints"),
        tokenizer=plan.path("tokenizer"),
    output:
        parquet=plan.path("downstream"),
        csv=plan.path("downstream").replace(".parquet", ".csv"),
    log:
        f"{plan.root}/logs/downstream/{{setting}}/{{architecture}}/seed{{seed}}.log",
    benchmark:
        f"{plan.root}/benchmarks/downstream/{{setting}}/{{architecture}}/seed{{seed}}.tsv"
    conda:
        "../../envs/seqarch.yaml"
    threads: plan.experiment.train.torch_threads
    params:
        spec=plan.spec("downstream"),
        code=plan.code("downstream"),
        expects=plan.expects,
        folder=plan.folder(plan.run),
        stem=plan.stem,
    message:
        "{wildcards.architecture} ({wildcards.setting}, seed {wildcards.seed}) on downstream tasks"
    shell:
        "python -m seqarch.cli.downstream --spec {params.spec:q} --code {params.code} --expects {params.expects:q}"
        " --run {params.folder:q} --tokenizer {input.tokenizer:q} --out {params.stem:q} > {log:q} 2>&1"


rule downstream_table:
    input:
        plan.paths("downstream"),
    output:
        parquet=plan.path("downstream_table"),
        csv=report(
            f"{plan.root}/tables/downstream.csv",
            category="Downstream",
            labels={"table": "downstream tasks"},
            caption="../report/downstream.rst",
        ),
    log:
        f"{plan.root}/logs/downstream_table.log",
    conda:
        "../../envs/seqarch.yaml"
    params:
        spec=plan.spec("downstream_table"),
        code=plan.code("downstream_table"),
        expects=plan.expects,
    message:
        "Gather the downstream scores of all runs"
    shell:
        "python -m seqarch.cli.tables --spec {params.spec:q} --code {params.code} --expects {params.expects:q}"
        " --downstream {input:q} --out-downstream {output.parquet:q} > {log:q} 2>&1"


use rule figure_corpus as figure_downstream with:
    input:
        tables=plan.path("downstream_table"),
    output:
        record=plan.path("figure_downstream"),
        csv=f"{plan.root}/figures/downstream.csv",
        images=report(
            plan.images("downstream"),
            category="Downstream",
            labels={"figure": "accuracy above chance"},
            caption="../report/downstream.rst",
        ),
    log:
        f"{plan.root}/logs/figures/downstream.log",
    params:
        spec=plan.spec("figure_downstream"),
        code=plan.code("figure_downstream"),
        expects=plan.expects,
        stem=plan.stem,
    message:
        "Draw downstream accuracy above chance"
