# The papers' claims (config/claims.yaml) and what this run says about them.


rule claims:
    input:
        domains=plan.paths("loss", 0),
        # Long: they change together with the table of domains.
        docs=ancient(plan.paths("loss", 1)),
        scores=plan.score_tables(),
    output:
        parquet=plan.path("claims"),
        csv=report(
            f"{plan.root}/tables/claims.csv",
            category="Claims",
            labels={"table": "verdicts on claims"},
            caption="../report/claims.rst",
        ),
    log:
        f"{plan.root}/logs/claims.log",
    benchmark:
        f"{plan.root}/benchmarks/claims.tsv"
    conda:
        "../../envs/seqarch.yaml"
    params:
        spec=plan.spec("claims"),
        code=plan.code("claims"),
        expects=plan.expects,
        stem=plan.stem,
    message:
        "Judge the claims"
    shell:
        "python -m seqarch.cli.claims --spec {params.spec:q} --code {params.code} --expects {params.expects:q}"
        " --docs {input.docs:q} --scores {input.scores:q} --out {params.stem:q} > {log:q} 2>&1"


use rule figure_corpus as figure_claims with:
    input:
        tables=plan.path("claims"),
    output:
        record=plan.path("figure_claims"),
        csv=f"{plan.root}/figures/claims.csv",
        images=report(
            plan.images("claims"),
            category="Claims",
            labels={"figure": "verdicts on claims"},
            caption="../report/claims.rst",
        ),
    log:
        f"{plan.root}/logs/figures/claims.log",
    params:
        spec=plan.spec("figure_claims"),
        code=plan.code("figure_claims"),
        expects=plan.expects,
        stem=plan.stem,
    message:
        "Draw the verdicts on claims"
