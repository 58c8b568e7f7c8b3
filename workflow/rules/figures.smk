# Figures depend on tables only. Each has its own module, so that an edit of one redraws that one.


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
        stem=plan.stem,
    message:
        "Draw the corpus"
    shell:
        "python -m seqarch.cli.figure --spec {params.spec:q} --code {params.code} --expects {params.expects:q}"
        " --table {input.tables:q} --out {params.stem:q} > {log:q} 2>&1"


use rule figure_corpus as figure_training with:
    input:
        tables=plan.path("training_table"),
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
        stem=plan.stem,
    message:
        "Draw the training curves"


use rule figure_corpus as figure_ood_vs_id with:
    input:
        tables=[plan.path("losses_table"), plan.path("unigram"), *plan.compared()],
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
        stem=plan.stem,
    message:
        "Draw out-of-domain against in-domain loss"


use rule figure_corpus as figure_loss_by_position with:
    input:
        tables=plan.path("positions_table"),
    output:
        record=plan.path("figure_loss_by_position"),
        csv=f"{plan.root}/figures/loss_by_position.csv",
        images=report(
            plan.images("loss_by_position"),
            category="Loss",
            labels={"figure": "loss by position"},
            caption="../report/loss_by_position.rst",
        ),
    log:
        f"{plan.root}/logs/figures/loss_by_position.log",
    params:
        spec=plan.spec("figure_loss_by_position"),
        code=plan.code("figure_loss_by_position"),
        expects=plan.expects,
        stem=plan.stem,
    message:
        "Draw the loss by position"


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
        stem=plan.stem,
    message:
        "Draw out-of-domain loss at equal in-domain loss"


use rule figure_corpus as figure_learning_rates with:
    input:
        tables=plan.path("learning_rates"),
    output:
        record=plan.path("figure_learning_rates"),
        csv=f"{plan.root}/figures/learning_rates.csv",
        images=report(
            plan.images("learning_rates"),
            category="Training",
            labels={"figure": "learning rates tried and chosen"},
            caption="../report/learning_rates.rst",
        ),
    log:
        f"{plan.root}/logs/figures/learning_rates.log",
    params:
        spec=plan.spec("figure_learning_rates"),
        code=plan.code("figure_learning_rates"),
        expects=plan.expects,
        stem=plan.stem,
    message:
        "Draw the learning rates that were tried"


use rule figure_corpus as figure_limited_mixed with:
    input:
        tables=plan.path("equal_loss"),
    output:
        record=plan.path("figure_limited_mixed"),
        csv=f"{plan.root}/figures/limited_mixed.csv",
        images=report(
            plan.images("limited_mixed"),
            category="Paper A",
            labels={"figure": "limited against mixed training"},
            caption="../report/limited_mixed.rst",
        ),
    log:
        f"{plan.root}/logs/figures/limited_mixed.log",
    params:
        spec=plan.spec("figure_limited_mixed"),
        code=plan.code("figure_limited_mixed"),
        expects=plan.expects,
        stem=plan.stem,
    message:
        "Draw differences by training setting"


use rule figure_corpus as figure_stateful with:
    input:
        tables=plan.path("equal_loss"),
    output:
        record=plan.path("figure_stateful"),
        csv=f"{plan.root}/figures/stateful.csv",
        images=report(
            plan.images("stateful"),
            category="Paper A",
            labels={"figure": "architectures with a state"},
            caption="../report/stateful.rst",
        ),
    log:
        f"{plan.root}/logs/figures/stateful.log",
    params:
        spec=plan.spec("figure_stateful"),
        code=plan.code("figure_stateful"),
        expects=plan.expects,
        stem=plan.stem,
    message:
        "Draw architectures with a state"


use rule figure_corpus as figure_minor_factors with:
    input:
        tables=plan.path("equal_loss"),
    output:
        record=plan.path("figure_minor_factors"),
        csv=f"{plan.root}/figures/minor_factors.csv",
        images=report(
            plan.images("minor_factors"),
            category="Paper A",
            labels={"figure": "factors that are said not to matter"},
            caption="../report/minor_factors.rst",
        ),
    log:
        f"{plan.root}/logs/figures/minor_factors.log",
    params:
        spec=plan.spec("figure_minor_factors"),
        code=plan.code("figure_minor_factors"),
        expects=plan.expects,
        stem=plan.stem,
    message:
        "Draw factors that are said not to matter"


use rule figure_corpus as figure_major_factors with:
    input:
        tables=plan.path("equal_loss"),
    output:
        record=plan.path("figure_major_factors"),
        csv=f"{plan.root}/figures/major_factors.csv",
        images=report(
            plan.images("major_factors"),
            category="Paper A",
            labels={"figure": "factors that are said to matter"},
            caption="../report/major_factors.rst",
        ),
    log:
        f"{plan.root}/logs/figures/major_factors.log",
    params:
        spec=plan.spec("figure_major_factors"),
        code=plan.code("figure_major_factors"),
        expects=plan.expects,
        stem=plan.stem,
    message:
        "Draw factors that are said to matter"


use rule figure_corpus as figure_top1 with:
    input:
        tables=plan.path("equal_loss"),
    output:
        record=plan.path("figure_top1"),
        csv=f"{plan.root}/figures/top1.csv",
        images=report(
            plan.images("top1"),
            category="Paper A",
            labels={"figure": "Top-1 selection"},
            caption="../report/top1.rst",
        ),
    log:
        f"{plan.root}/logs/figures/top1.log",
    params:
        spec=plan.spec("figure_top1"),
        code=plan.code("figure_top1"),
        expects=plan.expects,
        stem=plan.stem,
    message:
        "Draw Top-1 selection"


use rule figure_corpus as figure_recall with:
    input:
        tables=plan.path("recall_table"),
    output:
        record=plan.path("figure_recall"),
        csv=f"{plan.root}/figures/recall.csv",
        images=report(
            plan.images("recall"),
            category="Recall",
            labels={"figure": "recall by pairs, length and state"},
            caption="../report/recall.rst",
        ),
    log:
        f"{plan.root}/logs/figures/recall.log",
    params:
        spec=plan.spec("figure_recall"),
        code=plan.code("figure_recall"),
        expects=plan.expects,
        stem=plan.stem,
    message:
        "Draw recall against pairs and state"


use rule figure_corpus as figure_needle_heatmap with:
    input:
        tables=plan.path("recall_table"),
    output:
        record=plan.path("figure_needle_heatmap"),
        csv=f"{plan.root}/figures/needle_heatmap.csv",
        images=report(
            plan.images("needle_heatmap"),
            category="Recall",
            labels={"figure": "needle lines by depth and length"},
            caption="../report/needle_heatmap.rst",
        ),
    log:
        f"{plan.root}/logs/figures/needle_heatmap.log",
    params:
        spec=plan.spec("figure_needle_heatmap"),
        code=plan.code("figure_needle_heatmap"),
        expects=plan.expects,
        stem=plan.stem,
    message:
        "Draw the needles by depth and length"
