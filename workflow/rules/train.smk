# One run: one architecture, one setting, one seed. It depends on its own model, its own mixers' code and the
# tokens of its own domains; nothing that only evaluation uses.


rule train:
    input:
        train=lambda wildcards: plan.token_manifests("train", plan.experiment.weights(wildcards.setting)),
        validation=plan.token_manifests("validation", plan.experiment.in_domains),
    output:
        run=plan.path("train", 0),
        metrics=plan.path("train", 1),
        timing=f"{plan.run}/timing.parquet",
        # Which checkpoints there are depends on the architecture's budgets: not a pattern, hence the folder.
        checkpoints=directory(f"{plan.run}/checkpoints"),
    log:
        f"{plan.root}/logs/train/{{setting}}/{{architecture}}/seed{{seed}}.log",
    benchmark:
        f"{plan.root}/benchmarks/train/{{setting}}/{{architecture}}/seed{{seed}}.tsv"
    # A failed attempt leaves its state in work/: the next one goes on from there.
    retries: 2
    conda:
        "../../envs/seqarch.yaml"
    threads: plan.experiment.train.torch_threads
    params:
        spec=plan.spec("train"),
        code=plan.code("train"),
        expects=plan.expects,
        work=f"{plan.root}/work",
        folder=plan.folder(plan.run),
    message:
        "Train {wildcards.architecture} ({wildcards.setting}, seed {wildcards.seed})"
    shell:
        "python -m seqarch.cli.train --spec {params.spec:q} --code {params.code} --expects {params.expects:q}"
        " --manifests {input.train:q} {input.validation:q}"
        " --work {params.work:q} --run {params.folder:q} > {log:q} 2>&1"
