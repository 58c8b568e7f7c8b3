"""From raw text to figures. The targets: all (the default), corpus, figures, paper_a, paper_b."""

from snakemake.utils import min_version

from seqarch.workflow import accept_old_outputs, check_executor, open_plan

min_version("9.27")

# A configuration is complete: merged with the demo it would inherit the demo's architectures.
if not workflow.configfiles:

    configfile: workflow.source_path("config/config.yaml")


plan = open_plan(workflow, config)


wildcard_constraints:
    **plan.constraints,
    shard=r"\d+",


include: "workflow/rules/corpus.smk"
include: "workflow/rules/tokens.smk"
include: "workflow/rules/train.smk"
include: "workflow/rules/loss.smk"
include: "workflow/rules/recall.smk"
include: "workflow/rules/tables.smk"
include: "workflow/rules/figures.smk"
include: "workflow/rules/longcontext.smk"
include: "workflow/rules/claims.smk"
include: "workflow/rules/downstream.smk"


onstart:
    check_executor(workflow)


localrules:
    all,
    corpus,
    figures,
    paper_a,
    paper_b,
    pretrained_model,
    pretrained_tokenizer,
    sources,


rule corpus:
    input:
        rules.corpus_table.output,
        plan.paths("discard_text"),
    message:
        "The corpus, filtered and tokenized, and what is in it."


rule all:
    default_target: True
    input:
        rules.corpus.input,
        rules.figure_corpus.output,
        rules.figure_training.output,
        plan.paths("figure_learning_rates"),
        rules.figure_loss_by_position.output,
        rules.figure_ood_vs_id.output,
        rules.figure_equal_loss.output if plan.compared() else [],
        plan.study_figures(),
        rules.equal_loss_sensitivity.output if plan.compared() else [],
        rules.claims.output,
        rules.figure_claims.output,
        plan.paper_b(),
        plan.recalled(),
        plan.paths("figure_downstream"),


rule figures:
    input:
        rules.all.input,


rule paper_a:
    input:
        rules.figure_ood_vs_id.output,
        rules.figure_equal_loss.output if plan.compared() else [],
        plan.study_figures(),
    message:
        "Out-of-domain loss at equal in-domain loss (arXiv 2505.18522)."


rule paper_b:
    input:
        plan.paper_b(),
        plan.recalled(),
    message:
        "Long context: RULER, needles by depth and format, recall (arXiv 2407.08112)."
