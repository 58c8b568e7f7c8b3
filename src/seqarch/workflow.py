"""What the Snakefile calls: the plan of its configuration, and the checks that need Snakemake's own state."""

import gc
import os
import shutil
import socket
import sys
import time
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from snakemake.exceptions import WorkflowError
from snakemake.io import IOFile
from snakemake.logging import logger

from seqarch.config import check_unique_keys, load
from seqarch.errors import SeqarchError
from seqarch.plan import Plan
from seqarch.provenance import INVOCATION_VARIABLE


def open_plan(workflow: Any, config: Mapping[str, Any]) -> Plan:
    """The plan of the configuration that Snakemake has read; sets up the environment of the jobs.

    Raises snakemake's WorkflowError, which it prints without a traceback.
    """
    # `python` in a rule is the one that runs Snakemake, also if its environment is not activated.
    os.environ["PATH"] = os.pathsep.join(
        [os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)]
    )
    gc.set_threshold(100_000)  # planning makes many objects, and they all stay: collecting finds nothing
    config_dir = Path(workflow.basedir) / "config"
    try:
        for file in workflow.configfiles:
            check_unique_keys(Path(file))
        plan = Plan(load(config, config_dir), config_dir)
        if workflow.is_main_process:
            plan.export()
            os.environ[INVOCATION_VARIABLE] = f"{socket.gethostname()} {os.getpid()} {time.time()}"
    except SeqarchError as error:
        raise WorkflowError(str(error)) from error
    return plan


def accept_old_outputs(workflow: Any, plan: Plan) -> Callable[..., list[str]]:
    """An input function without inputs, for the lowest rule of the graph: called when the graph is built,
    so that every target is checked, and listing rules or unlocking is not.
    """

    @cache
    def check() -> None:
        settings, records = workflow.dag_settings, workflow.persistence
        if not workflow.is_main_process or settings.forceall:
            return

        def has_record(path: str) -> bool:
            unfinished = records._filter_incomplete_keys([path])  # it will be made again, or refused
            return bool(unfinished) or records.metadata(IOFile(path)) is not None

        plan.check_unrecorded(has_record, settings.forcerun)

    def accept(wildcards: Any) -> list[str]:
        try:
            check()
        except SeqarchError as error:
            # After any other exception Snakemake takes the files that are there for its sources.
            logger.error(str(error))
            sys.exit(error.exit_code)
        return []

    return accept


def check_executor(workflow: Any) -> None:
    """Raise WorkflowError if jobs are to be submitted to Slurm and there is none."""
    if workflow.executor_plugin.name == "slurm" and shutil.which("sbatch") is None:
        raise WorkflowError(
            "the profile submits jobs to Slurm, but there is no `sbatch` on this machine: log in to a node "
            "of the cluster, load its module (often `module load slurm`), or run here without --profile"
        )
