# Raw text -> filtered, split and deduplicated documents. The shards' Parquet files are not declared: each
# shard's small manifest, written last, lists them with their hashes.


rule sources:
    input:
        accept_old_outputs(workflow, plan),
    output:
        plan.path("sources"),
    log:
        f"{plan.corpus}/logs/sources/{{group}}.log",
    conda:
        "../../envs/seqarch.yaml"
    params:
        spec=plan.spec("sources"),
        code=plan.code("sources"),
        expects=plan.expects,
        archives=plan.archives,
    message:
        "List (and fetch, where it must be) the files of {wildcards.group}"
    shell:
        "python -m seqarch.cli.sources --spec {params.spec:q} --code {params.code}"
        " --archives {params.archives:q} --out {output:q} > {log:q} 2>&1"


rule filter:
    input:
        sources=plan.path("sources"),
    output:
        part=plan.path("filter"),
    log:
        f"{plan.corpus}/logs/filter/{{group}}-{{shard}}.log",
    benchmark:
        f"{plan.corpus}/benchmarks/filter/{{group}}-{{shard}}.tsv"
    conda:
        "../../envs/seqarch.yaml"
    params:
        spec=plan.spec("filter"),
        code=plan.code("filter"),
        expects=plan.expects,
        archives=plan.archives,
        text=plan.folder(f"{plan.corpus}/text"),
    shell:
        "python -m seqarch.cli.filter --spec {params.spec:q} --code {params.code} --expects {params.expects:q}"
        " --sources {input.sources:q} --archives {params.archives:q} --text {params.text:q}"
        " --out {output.part:q} > {log:q} 2>&1"


rule deduplicate:
    input:
        parts=lambda wildcards: plan.paths("filter", group=wildcards.group),
    output:
        manifest=plan.path("deduplicate"),
    log:
        f"{plan.corpus}/logs/deduplicate/{{group}}.log",
    benchmark:
        f"{plan.corpus}/benchmarks/deduplicate/{{group}}.tsv"
    conda:
        "../../envs/seqarch.yaml"
    params:
        spec=plan.spec("deduplicate"),
        code=plan.code("deduplicate"),
        expects=plan.expects,
        text=plan.folder(f"{plan.corpus}/text"),
    message:
        "Drop the duplicates of {wildcards.group}"
    shell:
        "python -m seqarch.cli.deduplicate --spec {params.spec:q} --code {params.code}"
        " --expects {params.expects:q} --parts {input.parts:q} --text {params.text:q}"
        " --out {output.manifest:q} > {log:q} 2>&1"


rule corpus_table:
    input:
        text=plan.paths("deduplicate"),
        tokens=[path for output in range(3) for path in plan.paths("tokens_manifest", output)],
    output:
        parquet=plan.path("corpus_table"),
        csv=report(
            f"{plan.root}/tables/corpus.csv",
            category="Corpus",
            labels={"table": "documents, bytes, tokens"},
            caption="../report/corpus_table.rst",
        ),
    log:
        f"{plan.root}/logs/corpus_table.log",
    conda:
        "../../envs/seqarch.yaml"
    params:
        spec=plan.spec("corpus_table"),
        code=plan.code("corpus_table"),
        expects=plan.expects,
        stem=plan.stem,
    message:
        "Count documents, bytes and tokens by domain and split"
    shell:
        "python -m seqarch.cli.corpus_table --spec {params.spec:q} --code {params.code}"
        " --expects {params.expects:q} --text-manifests {input.text:q} --token-manifests {input.tokens:q}"
        " --out {params.stem:q} > {log:q} 2>&1"
