# Fixed document sets, and the loss of every checkpoint of every run on them.


rule evaluation_set:
    input:
        test=plan.path("tokens_manifest", 2),
        train=plan.path("tokens_manifest", 0),  # no document may be in both
        tokenizer=plan.path("tokenizer"),
    output:
        set=plan.path("evaluation_set"),
    log:
        f"{plan.root}/logs/evaluation_set/{{domain}}.log",
    conda:
        "../../envs/seqarch.yaml"
    params:
        spec=plan.spec("evaluation_set"),
        code=plan.code("evaluation_set"),
        expects=plan.expects,
    message:
        "Draw the evaluation documents of {wildcards.domain}"
    shell:
        "python -m seqarch.cli.evaluation_set --spec {params.spec:q} --code {params.code}"
        " --expects {params.expects:q} --manifest {input.test:q} --train-manifest {input.train:q}"
        " --tokenizer {input.tokenizer:q} --out {output.set:q} > {log:q} 2>&1"


rule loss:
    input:
        run=plan.path("train", 0),
        # Large: followed through run.json, not through their times.
        checkpoints=ancient(f"{plan.run}/checkpoints"),
        sets=plan.paths("evaluation_set"),
    output:
        domains=plan.path("loss", 0),
        docs=plan.path("loss", 1),
        positions=plan.path("loss", 2),
    log:
        f"{plan.root}/logs/loss/{{setting}}/{{architecture}}/seed{{seed}}.log",
    benchmark:
        f"{plan.root}/benchmarks/loss/{{setting}}/{{architecture}}/seed{{seed}}.tsv"
    conda:
        "../../envs/seqarch.yaml"
    threads: plan.experiment.train.torch_threads
    params:
        spec=plan.spec("loss"),
        code=plan.code("loss"),
        expects=plan.expects,
        folder=plan.folder(plan.run),
        sets=plan.folder(f"{plan.root}/evaluation/sets"),
        out=plan.folder(plan.loss),
    message:
        "Score {wildcards.architecture} ({wildcards.setting}, seed {wildcards.seed})"
    shell:
        "python -m seqarch.cli.loss --spec {params.spec:q} --code {params.code} --expects {params.expects:q}"
        " --run {params.folder:q} --sets {params.sets:q} --out {params.out:q} > {log:q} 2>&1"
