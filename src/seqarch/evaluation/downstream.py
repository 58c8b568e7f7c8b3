"""Downstream tasks through lm-evaluation-harness, the optional library lm_eval.

The only file that touches it. Tasks, prompts and metrics are the harness'; what the model reads and how its
predictions are aligned is ours (downstream_score.py).
"""

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from seqarch.evaluation.columns import result_table
from seqarch.evaluation.downstream_score import Answerer, DownstreamError
from seqarch.evaluation.downstream_spec import DownstreamJob, DownstreamSpec

EXTRA = pa.schema(
    [
        ("metric", pa.string()),
        ("stderr", pa.float64()),
        ("chance", pa.float64()),
        ("above_chance", pa.float64()),  # score − chance
        ("normalised", pa.float64()),  # (score − chance) / (1 − chance)
        ("at_chance", pa.bool_()),  # less than two standard errors above it: says nothing
        ("perplexity", pa.float64()),  # of tasks that have one
        ("n_truncated", pa.int64()),  # requests that lost their beginning
        ("max_length", pa.int64()),
        ("num_fewshot", pa.int64()),
        ("task_version", pa.string()),
        ("harness", pa.string()),
    ]
)
MAX_NEW_TOKENS = 256  # of an answer, where a task does not say


def evaluate(answerer: Answerer, spec: DownstreamSpec) -> list[dict[str, Any]]:
    """A row a task, in the order of the configuration.

    Raises DownstreamError: lm_eval is missing, a task is unknown or its data cannot be loaded.
    """
    try:
        import lm_eval
        from lm_eval.tasks import TaskManager
    except ImportError as error:
        raise DownstreamError(f"downstream tasks: pip install 'seqarch[downstream]' ({error})") from error
    manager = None
    if spec.include_path:  # the harness' own tasks take seconds to list: not if nobody asks for them
        manager = TaskManager(include_path=spec.include_path, include_defaults=False)
    if manager is None or set(spec.tasks) - set(manager.all_tasks):
        manager = TaskManager(include_path=spec.include_path)
    for name in ("lm_eval", "lm-eval"):
        logging.getLogger(name).setLevel(logging.WARNING)
    harness = _harness(answerer)
    rows = []
    for task in spec.tasks:
        before = answerer.truncated
        try:
            found = lm_eval.simple_evaluate(
                model=harness,
                tasks=[task],
                num_fewshot=spec.num_fewshot,
                limit=spec.limit,
                task_manager=manager,
                log_samples=False,
                bootstrap_iters=0,
                random_seed=spec.seed,
                numpy_random_seed=spec.seed,
                torch_random_seed=spec.seed,
                fewshot_random_seed=spec.seed,
            )
        except DownstreamError:
            raise
        except Exception as error:  # the harness and the hub raise all kinds
            raise DownstreamError(
                f"{task}: lm_eval could not run it: {error}; its data must be in the cache of datasets where "
                "there is no network (fetch it once, then set HF_DATASETS_OFFLINE=1)"
            ) from error
        assert found is not None
        row = _row(task, spec, found, answerer.truncated - before)
        rows.append(row | {"max_length": answerer.max_length, "harness": f"lm_eval {lm_eval.__version__}"})
    return rows


def table(
    rows: Sequence[Mapping[str, Any]], job: DownstreamJob, tokenizer: str, spec_sha256: str
) -> pa.Table:
    """The rows of one run in the common columns."""
    return result_table(
        rows,
        EXTRA,
        experiment=job.experiment,
        setting=job.setting,
        model=job.architecture,
        arch=job.architecture,
        seed=job.seed,
        checkpoint=job.checkpoint,
        run_id=f"{job.setting}/{job.architecture}/seed{job.seed}",
        tokenizer_sha256=tokenizer,
        spec_sha256=spec_sha256,
    )


def _row(task: str, spec: DownstreamSpec, found: Mapping[str, Any], truncated: int) -> dict[str, Any]:
    metric, chance = spec.measure(task)
    results = found["results"].get(task)
    if results is None:
        raise DownstreamError(f"{task}: is a group of tasks; name its tasks one by one")
    by_name = {key.split(",")[0]: value for key, value in results.items() if isinstance(value, int | float)}
    if metric not in by_name:
        raise DownstreamError(f"{task}: has no metric {metric!r}; it has {', '.join(sorted(by_name))}")
    score, n = float(by_name[metric]), int(found["n-samples"][task]["effective"])
    # Of a share, over documents: what the harness gives for means, also where it gives none (n = 1).
    error = math.sqrt(max(score * (1 - score), 0.0) / (n - 1)) if n > 1 else None
    return {
        "task": task,
        "metric": metric,
        "n": n,
        "score": score,
        "stderr": error,
        "ci_lo": None if error is None else max(0.0, score - 1.96 * error),
        "ci_hi": None if error is None else min(1.0, score + 1.96 * error),
        "chance": chance,
        "above_chance": score - chance,
        "normalised": (score - chance) / (1 - chance),
        "at_chance": error is None or score - chance < 2 * error,
        "perplexity": by_name.get("perplexity"),
        "n_truncated": truncated,
        "num_fewshot": spec.num_fewshot,
        "task_version": str(found.get("versions", {}).get(task)),
    }


def _harness(answerer: Answerer) -> Any:
    """The model as lm_eval knows models."""
    from lm_eval.api.model import TemplateLM
    from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

    class Harness(TemplateLM):
        @property
        def eot_token_id(self) -> int:
            return answerer.bos  # what stands between documents in training

        @property
        def prefix_token_id(self) -> int:
            return answerer.bos

        @property
        def max_length(self) -> int:
            return answerer.max_length

        def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
            """With BOS, as every text in training, but for a continuation alone."""
            return answerer.encode(string) if add_special_tokens is False else answerer.with_bos(string)

        def _loglikelihood_tokens(
            self, requests: list[Any], disable_tqdm: bool = False, **_: Any
        ) -> list[tuple[float, bool]]:
            return answerer.continuations([(context, continuation) for _, context, continuation in requests])

        def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
            windows, owner = [], []
            for i, request in enumerate(requests):
                ids = answerer.encode(request.args[0])
                for pair in get_rolling_token_windows(ids, answerer.bos, answerer.max_length, 1):
                    windows.append(make_disjoint_window(pair))
                    owner.append(i)
            # Inputs end one before the predicted ids: the last of them is never read.
            parts = [([*left, *right][:-1], right) for left, right in windows]
            sums = [0.0] * len(requests)
            for i, (value, _) in zip(owner, answerer.windows(parts), strict=True):
                sums[i] += value
            return sums

        def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
            until, most = [], []
            for request in requests:
                options = request.args[1]
                if options.get("do_sample"):
                    raise DownstreamError("a task that samples its answers: only greedy ones are supported")
                stops = options.get("until") or []
                until.append([stops] if isinstance(stops, str) else list(stops))
                most.append(int(options.get("max_gen_toks", MAX_NEW_TOKENS)))
            return answerer.answers([request.args[0] for request in requests], until, most)

    return Harness()
