# Documents -> token ids. As for text, the shards' binary files are listed in manifests and not declared.
# Training and evaluation depend on the manifest of one split of one domain, which knows nothing of the others.


rule tokenizer:
    input:
        manifests=plan.tokenizer_inputs(),
    output:
        manifest=plan.path("tokenizer"),
        tokenizer=f"{plan.corpus}/tokenizer/tokenizer.json",
    log:
        f"{plan.corpus}/logs/tokenizer.log",
    benchmark:
        f"{plan.corpus}/benchmarks/tokenizer.tsv"
    conda:
        "../../envs/seqarch.yaml"
    params:
        spec=plan.spec("tokenizer"),
        code=plan.code("tokenizer"),
        expects=plan.expects,
        text=plan.folder(f"{plan.corpus}/text"),
    message:
        "Train the tokenizer on the in-domain text, or take the pretrained one"
    shell:
        "python -m seqarch.cli.tokenizer --spec {params.spec:q} --code {params.code}"
        " --expects {params.expects:q} --text {params.text:q} --manifests {input.manifests:q}"
        " --out {output.tokenizer:q} > {log:q} 2>&1"


rule tokenize:
    input:
        text=plan.path("deduplicate"),
        tokenizer=plan.path("tokenizer"),
    output:
        part=plan.path("tokenize"),
    log:
        f"{plan.corpus}/logs/tokenize/{{group}}-{{shard}}.log",
    benchmark:
        f"{plan.corpus}/benchmarks/tokenize/{{group}}-{{shard}}.tsv"
    conda:
        "../../envs/seqarch.yaml"
    params:
        spec=plan.spec("tokenize"),
        code=plan.code("tokenize"),
        expects=plan.expects,
        text=plan.folder(f"{plan.corpus}/text"),
        tokens=plan.folder(f"{plan.corpus}/tokens"),
    shell:
        "python -m seqarch.cli.tokenize --spec {params.spec:q} --code {params.code} --expects {params.expects:q}"
        " --text {params.text:q} --manifest {input.text:q} --tokenizer {input.tokenizer:q}"
        " --tokens {params.tokens:q} --out {output.part:q} > {log:q} 2>&1"


rule tokens_group:
    input:
        parts=lambda wildcards: plan.paths("tokenize", group=wildcards.group),
    output:
        plan.path("tokens_group"),
    log:
        f"{plan.corpus}/logs/tokens_group/{{group}}.log",
    conda:
        "../../envs/seqarch.yaml"
    params:
        spec=plan.spec("tokens_group"),
        code=plan.code("tokens_group"),
        expects=plan.expects,
    message:
        "Gather the tokenized shards of {wildcards.group}"
    shell:
        "python -m seqarch.cli.tokens_group --spec {params.spec:q} --code {params.code}"
        " --expects {params.expects:q} --parts {input.parts:q} --out {output:q} > {log:q} 2>&1"


rule tokens_manifest:
    input:
        parts=lambda wildcards: plan.tokenized(wildcards.domain),
    output:
        train=plan.path("tokens_manifest", 0),
        validation=plan.path("tokens_manifest", 1),
        test=plan.path("tokens_manifest", 2),
    log:
        f"{plan.corpus}/logs/tokens_manifest/{{domain}}.log",
    conda:
        "../../envs/seqarch.yaml"
    params:
        spec=plan.spec("tokens_manifest"),
        code=plan.code("tokens_manifest"),
        expects=plan.expects,
        tokens=plan.folder(f"{plan.corpus}/tokens"),
    message:
        "Merge the tokenized shards of {wildcards.domain}"
    shell:
        "python -m seqarch.cli.tokens_manifest --spec {params.spec:q} --code {params.code}"
        " --expects {params.expects:q} --parts {input.parts:q} --tokens {params.tokens:q} > {log:q} 2>&1"


rule discard_text:
    input:
        text=plan.path("deduplicate"),
        tokens=lambda wildcards: plan.token_manifests("train", plan.groups[wildcards.group]),
    output:
        plan.path("discard_text"),
    log:
        f"{plan.corpus}/logs/discard_text/{{group}}.log",
    conda:
        "../../envs/seqarch.yaml"
    params:
        spec=plan.spec("discard_text"),
        code=plan.code("discard_text"),
        expects=plan.expects,
        text=plan.folder(f"{plan.corpus}/text"),
    message:
        "Delete the filtered text of {wildcards.group}, which is tokenized"
    shell:
        "python -m seqarch.cli.discard_text --spec {params.spec:q} --code {params.code}"
        " --expects {params.expects:q} --text {params.text:q} --manifest {input.text:q}"
        " --out {output:q} > {log:q} 2>&1"
