"""Options of the downstream tasks: `evaluation.downstream` of a configuration, and the slice one job gets."""

from typing import Annotated, Any, NamedTuple

from pydantic import Field, model_validator

from seqarch.schema import Spec

Share = Annotated[float, Field(ge=0, lt=1)]


class Known(NamedTuple):
    """How a task is scored: lm-eval's metric, and what guessing scores."""

    metric: str
    chance: float


KNOWN = {  # lm-eval's usual tasks
    "boolq": Known("acc", 0.62),  # always "yes"
    "race": Known("acc", 0.25),
    "sciq": Known("acc", 0.25),
    "piqa": Known("acc", 0.5),
    "arc_easy": Known("acc", 0.25),
    "arc_challenge": Known("acc_norm", 0.25),
    "hellaswag": Known("acc_norm", 0.25),
    "openbookqa": Known("acc_norm", 0.25),
    "winogrande": Known("acc", 0.5),
    "lambada_openai": Known("acc", 0.0),
    "squad_completion": Known("contains", 0.0),
    "swde": Known("contains", 0.0),
    "fda": Known("contains", 0.0),
}


class TaskSpec(Spec):
    """One task of lm-eval. Metric and chance of the usual ones are known."""

    metric: str | None = None
    chance: Share | None = None


class DownstreamSpec(Spec):
    """`evaluation.downstream`."""

    tasks: Annotated[dict[str, TaskSpec], Field(min_length=1)]
    include_path: str | None = None  # a folder with tasks of one's own, in lm-eval's YAML
    limit: Annotated[int, Field(gt=0)] | None = None  # documents of a task; null: all
    num_fewshot: Annotated[int, Field(ge=0)] = 0
    max_length: Annotated[int, Field(ge=2)] | None = None  # tokens; null: the training length
    batch_tokens: Annotated[int, Field(gt=0)] = 16_384  # of one forward pass
    seed: int = 0

    @model_validator(mode="after")
    def _scored(self) -> "DownstreamSpec":
        for name in self.tasks:
            self.measure(name)
        return self

    def measure(self, task: str) -> Known:
        """Metric and chance of a task of the configuration."""
        chosen, known = self.tasks[task], KNOWN.get(task)
        metric = chosen.metric or (known.metric if known else None)
        chance = chosen.chance if chosen.chance is not None or known is None else known.chance
        if metric is None or chance is None:
            raise ValueError(
                f"tasks.{task}: give its metric and its chance; known are {', '.join(sorted(KNOWN))}"
            )
        return Known(metric, chance)


class DownstreamJob(Spec):
    """`cli.downstream`: the last checkpoint of one run on every task."""

    experiment: str
    setting: str
    architecture: str
    seed: int
    model: dict[str, Any]  # resolved: seqarch.architecture.resolve
    checkpoint: str
    sequence_length: Annotated[int, Field(ge=2)]
    torch_threads: Annotated[int, Field(ge=1)] = 1
    downstream: DownstreamSpec
