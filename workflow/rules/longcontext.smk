# Long context: samples for each tokenizer, the answers of trained runs and of published models, scores, tables.
# Sections `evaluation.ruler`, `evaluation.needle` and `pretrained`; without them none of these rules has a job.


rule pretrained_tokenizer:
    output:
        manifest=plan.path("pretrained_tokenizer"),
        tokenizer=f"{plan.root}/longcontext/tokenizers/{{vocab}}/tokenizer.json",
    log:
        f"{plan.root}/logs/pretrained_tokenizer/{{vocab}}.log",
    conda:
        "../../envs/seqarch.yaml"
    params:
        spec=plan.spec("pretrained_tokenizer"),
        code=plan.code("pretrained_tokenizer"),
        expects=plan.expects,
    message:
        "Take the tokenizer {wildcards.vocab}"
    shell:
        "python -m seqarch.cli.pretrained_tokenizer --spec {params.spec:q} --code {params.code}"
        " --out {output.manifest:q} > {log:q} 2>&1"


rule pretrained_model:
    output:
        model=plan.path("pretrained_model"),
    log:
        f"{plan.root}/logs/pretrained_model/{{published}}.log",
    conda:
        "../../envs/seqarch.yaml"
    params:
        spec=plan.spec("pretrained_model"),
        code=plan.code("pretrained_model"),
        expects=plan.expects,
    message:
        "Bring {wildcards.published} onto this machine"
    shell:
        "python -m seqarch.cli.pretrained_model --spec {params.spec:q} --code {params.code}"
        " --out {output.model:q} > {log:q} 2>&1"


rule ruler_data:
    input:
        tokenizer=lambda wildcards: plan.tokenizer_of(wildcards.vocab),
        text=plan.sample_text,
    output:
        about=plan.path("ruler_data"),
        samples=plan.path("ruler_data") + "l",
    log:
        f"{plan.root}/logs/ruler_data/{{vocab}}/{{suite}}/{{probe}}/L{{length}}.log",
    benchmark:
        f"{plan.root}/benchmarks/ruler_data/{{vocab}}/{{suite}}/{{probe}}/L{{length}}.tsv"
    wildcard_constraints:
        suite="fixed|faithful",
    conda:
        "../../envs/seqarch.yaml"
    params:
        command="ruler_data",
        spec=plan.spec("ruler_data"),
        code=plan.code("ruler_data"),
        expects=plan.expects,
        text=plan.folder(f"{plan.corpus}/text"),
    message:
        "Make samples of {wildcards.probe}, {wildcards.length} tokens of {wildcards.vocab}"
    shell:
        "python -m seqarch.cli.{params.command} --spec {params.spec:q} --code {params.code} --expects {params.expects:q}"
        " --tokenizer {input.tokenizer:q} --text {params.text:q} --manifests {input.text:q}"
        " --out {output.samples:q} > {log:q} 2>&1"


use rule ruler_data as needle_data with:
    output:
        about=plan.path("needle_data"),
        samples=plan.path("needle_data") + "l",
    log:
        f"{plan.root}/logs/needle_data/{{vocab}}/{{suite}}/{{probe}}/L{{length}}.log",
    benchmark:
        f"{plan.root}/benchmarks/needle_data/{{vocab}}/{{suite}}/{{probe}}/L{{length}}.tsv"
    wildcard_constraints:
        suite="needle",
    params:
        command="needle_data",
        spec=plan.spec("needle_data"),
        code=plan.code("needle_data"),
        expects=plan.expects,
        text=plan.folder(f"{plan.corpus}/text"),


rule predict:
    input:
        run=plan.path("train", 0),
        # Large: followed through run.json, not through their times.
        checkpoints=ancient(f"{plan.run}/checkpoints"),
        about=plan.samples("own"),
        samples=plan.samples("own") + "l",
        tokenizer=plan.path("tokenizer"),
    output:
        about=plan.path("predict"),
        answers=plan.path("predict") + "l",
    log:
        f"{plan.root}/logs/predict/{{setting}}/{{architecture}}/seed{{seed}}/{{suite}}-{{probe}}-{{length}}.log",
    benchmark:
        f"{plan.root}/benchmarks/predict/{{setting}}/{{architecture}}/seed{{seed}}/{{suite}}-{{probe}}-{{length}}.tsv"
    conda:
        "../../envs/seqarch.yaml"
    threads: plan.experiment.train.torch_threads
    params:
        spec=plan.spec("predict"),
        code=plan.code("predict"),
        expects=plan.expects,
        folder=plan.folder(plan.run),
    message:
        "{wildcards.architecture} ({wildcards.setting}, seed {wildcards.seed}) answers {wildcards.probe}"
    shell:
        "python -m seqarch.cli.predict --spec {params.spec:q} --code {params.code} --expects {params.expects:q}"
        " --data {input.samples:q} --tokenizer {input.tokenizer:q} --run {params.folder:q}"
        " --out {output.answers:q} > {log:q} 2>&1"


rule predict_pretrained:
    input:
        model=plan.path("pretrained_model"),
        about=lambda wildcards: plan.samples_of(wildcards),
        samples=lambda wildcards: plan.samples_of(wildcards) + "l",
        tokenizer=lambda wildcards: plan.tokenizer_of(plan.long_context.vocab_of(wildcards.published)),
    output:
        about=plan.path("predict_pretrained"),
        answers=plan.path("predict_pretrained") + "l",
    log:
        f"{plan.root}/logs/predict_pretrained/{{published}}/{{suite}}-{{probe}}-{{length}}.log",
    benchmark:
        f"{plan.root}/benchmarks/predict_pretrained/{{published}}/{{suite}}-{{probe}}-{{length}}.tsv"
    conda:
        "../../envs/seqarch.yaml"
    params:
        spec=plan.spec("predict_pretrained"),
        code=plan.code("predict_pretrained"),
        expects=plan.expects,
    message:
        "{wildcards.published} answers {wildcards.probe}, {wildcards.length} tokens"
    shell:
        "python -m seqarch.cli.predict_pretrained --spec {params.spec:q} --code {params.code}"
        " --expects {params.expects:q} --data {input.samples:q} --tokenizer {input.tokenizer:q}"
        " --model {input.model:q} --out {output.answers:q} > {log:q} 2>&1"


rule run_scores:
    input:
        about=plan.samples("own"),
        samples=plan.samples("own") + "l",
        said=plan.path("predict"),
        answers=plan.path("predict") + "l",
    output:
        scores=plan.path("run_scores"),
        csv=plan.path("run_scores").replace(".parquet", ".csv"),
        each=plan.path("run_scores").replace(".parquet", ".samples.parquet"),
    log:
        f"{plan.root}/logs/run_scores/{{setting}}/{{architecture}}/seed{{seed}}/{{suite}}-{{probe}}-{{length}}.log",
    conda:
        "../../envs/seqarch.yaml"
    params:
        spec=plan.spec("run_scores"),
        code=plan.code("run_scores"),
        expects=plan.expects,
        stem=plan.stem,
    message:
        "Score the answers of {wildcards.architecture} to {wildcards.probe}"
    shell:
        "python -m seqarch.cli.ruler_score --spec {params.spec:q} --code {params.code}"
        " --expects {params.expects:q} --data {input.samples:q} --predictions {input.answers:q}"
        " --out {params.stem:q} > {log:q} 2>&1"


use rule run_scores as pretrained_scores with:
    input:
        about=lambda wildcards: plan.samples_of(wildcards),
        samples=lambda wildcards: plan.samples_of(wildcards) + "l",
        said=plan.path("predict_pretrained"),
        answers=plan.path("predict_pretrained") + "l",
    output:
        scores=plan.path("pretrained_scores"),
        csv=plan.path("pretrained_scores").replace(".parquet", ".csv"),
        each=plan.path("pretrained_scores").replace(".parquet", ".samples.parquet"),
    log:
        f"{plan.root}/logs/pretrained_scores/{{published}}/{{suite}}-{{probe}}-{{length}}.log",
    params:
        spec=plan.spec("pretrained_scores"),
        code=plan.code("pretrained_scores"),
        expects=plan.expects,
        stem=plan.stem,
    message:
        "Score the answers of {wildcards.published} to {wildcards.probe}"


rule ruler_table:
    input:
        scores=plan.scores(needle=False),
        each=[path.replace(".parquet", ".samples.parquet") for path in plan.scores(needle=False)],
        published=ancient(plan.long_context.printed("ruler")),
    output:
        parquet=plan.path("ruler_table"),
        csv=report(
            f"{plan.root}/tables/ruler.csv",
            category="Long context",
            labels={"table": "RULER"},
            caption="../report/ruler.rst",
        ),
    log:
        f"{plan.root}/logs/ruler_table.log",
    conda:
        "../../envs/seqarch.yaml"
    params:
        spec=plan.spec("ruler_table"),
        code=plan.code("ruler_table"),
        expects=plan.expects,
        stem=plan.stem,
    message:
        "Gather the long-context scores, published figures beside them"
    shell:
        "python -m seqarch.cli.long_context_table --spec {params.spec:q} --code {params.code} --expects {params.expects:q}"
        " --scores {input.scores:q} --published {input.published:q} --out {params.stem:q} > {log:q} 2>&1"


use rule ruler_table as needle_table with:
    input:
        scores=plan.scores(needle=True),
        each=[path.replace(".parquet", ".samples.parquet") for path in plan.scores(needle=True)],
        published=ancient(plan.long_context.printed("niah")),
    output:
        parquet=plan.path("needle_table"),
        csv=report(
            f"{plan.root}/tables/needle.csv",
            category="Long context",
            labels={"table": "needles by depth and format"},
            caption="../report/needle.rst",
        ),
    log:
        f"{plan.root}/logs/needle_table.log",
    params:
        spec=plan.spec("needle_table"),
        code=plan.code("needle_table"),
        expects=plan.expects,
        stem=plan.stem,


use rule figure_corpus as figure_ruler with:
    input:
        tables=plan.path("ruler_table"),
    output:
        record=plan.path("figure_ruler"),
        csv=f"{plan.root}/figures/ruler.csv",
        images=report(
            plan.images("ruler"),
            category="Long context",
            labels={"figure": "scores by length"},
            caption="../report/figure_ruler.rst",
        ),
    log:
        f"{plan.root}/logs/figures/ruler.log",
    params:
        spec=plan.spec("figure_ruler"),
        code=plan.code("figure_ruler"),
        expects=plan.expects,
        stem=plan.stem,
    message:
        "Draw the long-context scores by length"


use rule figure_corpus as figure_published with:
    input:
        tables=plan.path("ruler_table"),
    output:
        record=plan.path("figure_published"),
        csv=f"{plan.root}/figures/published.csv",
        images=report(
            plan.images("published"),
            category="Long context",
            labels={"figure": "ours against published"},
            caption="../report/published.rst",
        ),
    log:
        f"{plan.root}/logs/figures/published.log",
    params:
        spec=plan.spec("figure_published"),
        code=plan.code("figure_published"),
        expects=plan.expects,
        stem=plan.stem,
    message:
        "Draw our scores against the published ones"


use rule figure_corpus as figure_needle_formats with:
    input:
        tables=plan.path("needle_table"),
    output:
        record=plan.path("figure_needle_formats"),
        csv=f"{plan.root}/figures/needle_formats.csv",
        images=report(
            plan.images("needle_formats"),
            category="Long context",
            labels={"figure": "needle by format and depth"},
            caption="../report/needle_formats.rst",
        ),
    log:
        f"{plan.root}/logs/figures/needle_formats.log",
    params:
        spec=plan.spec("figure_needle_formats"),
        code=plan.code("figure_needle_formats"),
        expects=plan.expects,
        stem=plan.stem,
    message:
        "Draw the needle's formats"


use rule figure_corpus as figure_needle_text with:
    input:
        tables=plan.path("needle_table"),
    output:
        record=plan.path("figure_needle_text"),
        csv=f"{plan.root}/figures/needle_text.csv",
        images=report(
            plan.images("needle_text"),
            category="Long context",
            labels={"figure": "needle in text by depth and length"},
            caption="../report/needle_text.rst",
        ),
    log:
        f"{plan.root}/logs/figures/needle_text.log",
    params:
        spec=plan.spec("figure_needle_text"),
        code=plan.code("figure_needle_text"),
        expects=plan.expects,
        stem=plan.stem,
    message:
        "Draw the needle by depth and length"
