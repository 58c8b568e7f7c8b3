"""The jobs of the recall evaluation, and exactly what each depends on. Nothing is loaded here.

One job trains and scores one architecture on one task, at all learning rates and with all seeds: its runs
take seconds, as starting a process does. Without the section `evaluation.recall` there are no jobs.
"""

from functools import cached_property
from typing import Any

from seqarch.architecture import mixer_names
from seqarch.config import Experiment

Job = dict[str, str]
RULES = ("recall", "recall_table", "figure_recall", "figure_needle_heatmap")
DEEP = ("needle_lines", "passkey")  # kinds of tasks that hide something at a depth


class RecallJobs:
    """Jobs and slices of one experiment, for the rules of RULES. Arguments are the wildcards of a job; a
    `learner` is an architecture of these tasks."""

    def __init__(self, experiment: Experiment) -> None:
        self.experiment, self.options = experiment, experiment.evaluation.recall

    @cached_property
    def jobs(self) -> dict[str, list[Job]]:
        """The wildcards of each job, by rule."""
        tasks = self.options.tasks if self.options else {}
        names = [{"task": task, "learner": learner} for task in tasks for learner in self.experiment.learners]
        deep = [task for task in tasks.values() if task.kind in DEEP]
        return {
            "recall": names,
            "recall_table": [{}] if tasks else [],
            "figure_recall": [{}] if len(deep) < len(tasks) else [],
            "figure_needle_heatmap": [{}] if deep else [],
        }

    @cached_property
    def mixers(self) -> dict[str, list[str]]:
        """The mixers of each learner."""
        if self.options is None:
            return {}
        task = next(iter(self.options.tasks))
        return {
            name: mixer_names(self.experiment.learner_model(name, task)) for name in self.experiment.learners
        }

    @property
    def threads(self) -> int:
        return self.options.torch_threads if self.options else 1

    @cached_property
    def values(self) -> dict[str, list[str]]:
        """The values of the wildcards that only these rules have."""
        jobs = self.jobs["recall"]
        return {name: list(dict.fromkeys(job[name] for job in jobs)) for name in ("task", "learner")}

    def recall(self, task: str, learner: str) -> dict[str, Any]:
        assert self.options is not None
        return {
            "experiment": self.experiment.experiment,
            "name": task,
            "architecture": learner,
            "model": self.experiment.learner_model(learner, task),
            "task": self.options.tasks[task].model_dump(mode="json"),
            **self.options.options(),
        }

    def recall_table(self) -> dict[str, Any]:
        return {"experiment": self.experiment.experiment}
