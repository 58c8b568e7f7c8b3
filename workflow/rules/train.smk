# The learning rate of an architecture, where a grid of them is to be tried: short runs, and the choice by their
# in-domain validation loss.


rule sweep:
    input:
        train=lambda wildcards: plan.token_manifests("train", plan.experiment.weights(wildcards.setting)),
        validation=plan.token_manifests("validation", plan.experiment.in_domains),
    output:
        run=plan.path("sweep", 0),
        metrics=plan.path("sweep", 1),
        timing=f"{plan.sweep}/timing.parquet",
    log:
        f"{plan.root}/logs/sweep/{{setting}}/{{architecture}}/lr{{rate}}.log",
    benchmark:
        f"{plan.root}/benchmarks/sweep/{{setting}}/{{architecture}}/lr{{rate}}.tsv"
    retries: 20 if workflow.is_main_process else 0  # as in train
    conda:
        "../../envs/seqarch.yaml"
    threads: plan.experiment.train.torch_threads * plan.experiment.train.processes
    resources:
        gpu=plan.experiment.train.processes,
    params:
        spec=plan.spec("sweep"),
        code=plan.code("sweep"),
        expects=plan.expects,
        work=f"{plan.root}/work",
        folder=plan.folder(plan.sweep),
    message:
        "Try learning rate {wildcards.rate} for {wildcards.architecture} ({wildcards.setting})"
    shell:
        "python -m seqarch.cli.train --trial --spec {params.spec:q} --code {params.code}"
        " --expects {params.expects:q} --manifests {input.train:q} {input.validation:q}"
        " --work {params.work:q} --run {params.folder:q} > {log:q} 2>&1"


rule choice:
    input:
        trials=lambda wildcards: plan.paths("sweep", **wildcards),
        metrics=lambda wildcards: ancient(plan.paths("sweep", 1, **wildcards)),
    output:
        choice=plan.path("choice"),
    log:
        f"{plan.root}/logs/choice/{{setting}}/{{architecture}}.log",
    conda:
        "../../envs/seqarch.yaml"
    params:
        spec=plan.spec("choice"),
        code=plan.code("choice"),
        expects=plan.expects,
    message:
        "Choose the learning rate of {wildcards.architecture} ({wildcards.setting})"
    shell:
        "python -m seqarch.cli.choice --spec {params.spec:q} --code {params.code} --expects {params.expects:q}"
        " --trials {input.trials:q} --out {output.choice:q} > {log:q} 2>&1"


# One run: one architecture, one setting, one seed. It depends on its own model, its own mixers' code and the
# tokens of its own domains; nothing that only evaluation uses.


rule train:
    input:
        train=lambda wildcards: plan.token_manifests("train", plan.experiment.weights(wildcards.setting)),
        validation=plan.token_manifests("validation", plan.experiment.in_domains),
        choice=plan.choice,
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
    # A failed attempt leaves its state in work/: the next one goes on from there. A run may need many time
    # limits; the step itself gives up after two attempts without progress.
    # Only the snakemake that submits retries: a rule's own number would count within a cluster job as well.
    retries: 20 if workflow.is_main_process else 0
    conda:
        "../../envs/seqarch.yaml"
    threads: plan.experiment.train.torch_threads * plan.experiment.train.processes
    resources:
        gpu=plan.experiment.train.processes,  # counts where there is a scheduler that knows of GPUs
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
        " --manifests {input.train:q} {input.validation:q} --choice {input.choice:q}"
        " --work {params.work:q} --run {params.folder:q} > {log:q} 2>&1"
