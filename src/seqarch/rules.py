"""The rules of the workflow: the wildcards of their jobs, the outputs that carry a record, their commands.

The rules in `workflow/rules/` say the same to Snakemake; a test holds the two together.
"""

from typing import NamedTuple

from seqarch.long_context import SAMPLES
from seqarch.slices import SPLITS, STUDY_FIGURES

SHARDS = ("group", "shard")
RUN = ("setting", "architecture", "seed")
RUN_PATH = "{setting}/{architecture}/seed{seed}"
SWEEP_PATH = "{root}/sweeps/{setting}/{architecture}"
SAMPLES_PATH = "{suite}/{probe}/L{length}"  # of long-context samples


class Rule(NamedTuple):
    """A rule: the wildcards of its jobs, its outputs that carry a record, and the command that makes them."""

    wildcards: tuple[str, ...]
    outputs: tuple[str, ...]
    command: str = ""  # of seqarch.cli; the rule's own name where it is empty


def _long_context_rules() -> dict[str, Rule]:
    """Samples, predictions and scores, each a folder of files with their records."""
    folder, by = "{root}/longcontext", {"run": RUN_PATH, "pretrained": "{published}"}
    run, published = (*RUN, *SAMPLES), ("published", *SAMPLES)
    data = f"{folder}/data/{{vocab}}/{SAMPLES_PATH}/samples.json"
    said = {who: (f"{folder}/predictions/{who}/{path}/{SAMPLES_PATH}.json",) for who, path in by.items()}
    scores = {who: (f"{folder}/scores/{who}/{path}/{SAMPLES_PATH}.parquet",) for who, path in by.items()}
    return {
        "pretrained_tokenizer": Rule(("vocab",), (f"{folder}/tokenizers/{{vocab}}/manifest.json",)),
        "pretrained_model": Rule(("published",), (f"{folder}/models/{{published}}.json",)),
        "ruler_data": Rule(("vocab", *SAMPLES), (data,)),
        "needle_data": Rule(("vocab", *SAMPLES), (data,)),
        "predict": Rule(run, said["run"]),
        "predict_pretrained": Rule(published, said["pretrained"]),
        "run_scores": Rule(run, scores["run"], "ruler_score"),
        "pretrained_scores": Rule(published, scores["pretrained"], "ruler_score"),
        "ruler_table": Rule((), ("{root}/tables/ruler.parquet",), "long_context_table"),
        "needle_table": Rule((), ("{root}/tables/needle.parquet",), "long_context_table"),
        **{
            f"figure_{figure}": Rule((), (f"{{root}}/figures/{figure}.json",), "figure")
            for figure in ("ruler", "published", "needle_formats", "needle_text")
        },
    }


RULES = {
    "sources": Rule(("group",), ("{corpus}/sources/{group}.json",)),
    "filter": Rule(SHARDS, ("{corpus}/text/parts/{group}-{shard}.json",)),
    "deduplicate": Rule(("group",), ("{corpus}/text/{group}.json",)),
    "tokenizer": Rule((), ("{corpus}/tokenizer/manifest.json",)),
    "tokenize": Rule(SHARDS, ("{corpus}/tokens/parts/{group}-{shard}.json",)),
    "tokens_group": Rule(("group",), ("{corpus}/tokens/groups/{group}.json",)),
    "tokens_manifest": Rule(
        ("domain",),
        tuple(f"{{corpus}}/tokens/{split}/{{domain}}/manifest.json" for split in SPLITS),
    ),
    "discard_text": Rule(("group",), ("{corpus}/text/discarded/{group}.json",)),
    "corpus_table": Rule((), ("{root}/tables/corpus.parquet",)),
    "evaluation_set": Rule(("domain",), ("{root}/evaluation/sets/{domain}.json",)),
    "sweep": Rule(
        ("setting", "architecture", "rate"),
        (f"{SWEEP_PATH}/lr{{rate}}/run.json", f"{SWEEP_PATH}/lr{{rate}}/metrics.parquet"),
        "train",
    ),
    "choice": Rule(("setting", "architecture"), (f"{SWEEP_PATH}/choice.json",)),
    "train": Rule(RUN, (f"{{root}}/runs/{RUN_PATH}/run.json", f"{{root}}/runs/{RUN_PATH}/metrics.parquet")),
    "loss": Rule(
        RUN,
        tuple(
            f"{{root}}/evaluation/loss/{RUN_PATH}/{table}.parquet"
            for table in ("domains", "docs", "positions")
        ),
    ),
    "losses_table": Rule((), ("{root}/tables/losses.parquet",), "tables"),
    "positions_table": Rule((), ("{root}/tables/positions.parquet",), "tables"),
    "training_table": Rule((), ("{root}/tables/training.parquet",), "tables"),
    "learning_rates": Rule((), ("{root}/tables/learning_rates.parquet",)),
    "unigram": Rule((), ("{root}/tables/unigram.parquet",)),
    "equal_loss": Rule((), ("{root}/tables/equal_loss.parquet",)),
    "equal_loss_sensitivity": Rule((), ("{root}/tables/equal_loss_sensitivity.parquet",), "sensitivity"),
    "claims": Rule((), ("{root}/tables/claims.parquet",)),
    "recall": Rule(
        ("task", "learner"),
        tuple(
            f"{{root}}/evaluation/recall/{{task}}/{{learner}}/{name}.parquet" for name in ("scores", "sweep")
        ),
    ),
    "recall_table": Rule((), tuple(f"{{root}}/tables/{name}.parquet" for name in ("recall", "recall_sweep"))),
    **_long_context_rules(),
    "downstream": Rule(RUN, (f"{{root}}/evaluation/downstream/{RUN_PATH}/scores.parquet",)),
    "downstream_table": Rule((), ("{root}/tables/downstream.parquet",), "tables"),
    **{
        f"figure_{figure}": Rule((), (f"{{root}}/figures/{figure}.json",), "figure")
        for figure in (
            "corpus",
            "training",
            "ood_vs_id",
            "loss_by_position",
            "equal_loss",
            "claims",
            "learning_rates",
            "downstream",
            *STUDY_FIGURES,
            "recall",
            "needle_heatmap",
        )
    },
}
