"""`work/<fingerprint>/`: the state of an unfinished run; the same command goes on where it stopped.

The fingerprint covers the spec, the code and the inputs, so that a stale state is never resumed. Inside:

    job.json                            whose state it is
    lock                                one writer: a job can outlive the snakemake that started it
    state-<ordinal>-<digest>.safetensors  the two newest states, and those that a decay branch will return to
    run/                                the outputs so far; they move to the run directory together at the end
    attempts.json                       where the attempts of the present `snakemake` started
    micro_batch.json                    rows that fit in memory, where those asked for did not

A state's name carries the sha256 of its bytes: a truncated or altered file is found out before it is used.
"""

import contextlib
import fcntl
import json
import logging
import os
import shutil
import socket
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from seqarch.files import atomic_path, canonical_json, read_json, sha256_file, sha256_text, write_json
from seqarch.provenance import recipe
from seqarch.training.errors import NoProgress, WorkDirectoryError

log = logging.getLogger(__name__)

ABOUT = "job.json"


class InUseError(WorkDirectoryError):
    """Another process has the working directory."""


@dataclass(frozen=True)
class State:
    """Tensors, and JSON about them: where in the plan they are from, and what they need beside them."""

    name: str
    tensors: dict[str, Tensor]
    info: dict[str, Any]


def fingerprint(record: Mapping[str, Any]) -> str:
    """The name of a run's working directory, from its provenance: what was asked for, of which inputs."""
    wanted = asked(record["spec"], record["code"])
    return sha256_text(canonical_json({"recipe": wanted, "inputs": record["inputs"]}))[:32]


def asked(spec: Mapping[str, Any], code: str) -> str:
    """The recipe of a run without how it is launched: it goes on with another number of processes."""
    train = {key: value for key, value in spec["train"].items() if key != "launcher"}
    return recipe("train", {**spec, "train": train}, code)


class WorkDirectory:
    """The working directory of one run, locked from `open` to `close`, or within `with`.

    Raises (from every method but `delete`):
        WorkDirectoryError: another process has it (InUseError), or it cannot be written.
    """

    def __init__(self, root: Path, name: str) -> None:
        self.path = Path(root) / name
        self.outputs = self.path / "run"
        self._lock: int | None = None
        self._needs: dict[str, str | None] = {}  # state on disk -> the state it will return to

    def __enter__(self) -> "WorkDirectory":
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def open(self) -> None:
        """Take the lock, and clear away what a killed process was writing."""
        with self.writing():
            self._lock = self._acquire()
            self._clear_drafts()

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)  # releases the lock
        self._lock = None

    def _acquire(self) -> int:
        while True:
            self.path.mkdir(parents=True, exist_ok=True)
            try:
                descriptor = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o666)
            except FileNotFoundError:  # the holder before us has just removed the directory
                continue
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                holder = os.read(descriptor, 200).decode() or "another process"
                os.close(descriptor)
                raise InUseError(
                    f"{holder} is training this run in {self.path}: wait for it or end it, then start again "
                    "(a job can outlive the snakemake that started it)"
                ) from error
            # The holder before us may have removed the directory at its end: then this lock is of no file.
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), os.stat(self.path / "lock")):
                    os.truncate(descriptor, 0)
                    os.write(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode())
                    return descriptor
            os.close(descriptor)

    def _clear_drafts(self) -> None:
        """Delete what a killed process was writing."""
        for file in (*self.path.glob(".*.tmp*"), *self.path.glob("draft*"), *self.outputs.rglob(".*.tmp*")):
            file.unlink()

    def describe(self, record: Mapping[str, Any]) -> None:
        """Leave word of whose state this is, for `seqarch.cli.clean`."""
        about = {
            "step": record["step"],
            "code": record["code"],
            "asked": asked(record["spec"], record["code"]),
        }
        names = {key: record["spec"].get(key) for key in ("setting", "architecture", "seed")}
        with self.writing():
            write_json(self.path / ABOUT, {**about, **names})

    # --- states -------------------------------------------------------------------------------------------

    def save(self, tensors: Mapping[str, Tensor], info: Mapping[str, Any], needs: str | None) -> str:
        """Write a state and drop those that nothing needs any more; its name.

        Args:
            needs: the name of a state that training will return to from this one.
        """
        ordinal = max((_ordinal(name) for name in self._names()), default=0) + 1
        draft = self.path / "draft.safetensors"
        text = canonical_json({**info, "needs": needs})
        with self.writing():
            with atomic_path(draft) as temporary:
                save_file(dict(tensors), temporary, metadata={"state": text})
            name = f"state-{ordinal:06d}-{sha256_file(draft)}.safetensors"
            draft.rename(self.path / name)
            self._needs[name] = needs
            self._prune()
        return name

    def _prune(self) -> None:
        newest = sorted(self._names(), key=_ordinal)[-2:]
        keep = {*newest, *(self._needs.get(name) for name in newest)}
        for name in self._names():
            if name not in keep:
                (self.path / name).unlink()
                self._needs.pop(name, None)

    def load(self, name: str) -> State:
        """The state of this name. Raises WorkDirectoryError if it is not what was written."""
        path = self.path / name
        self._verify(name)
        try:
            with safe_open(path, framework="pt") as file:
                info = json.loads(file.metadata()["state"])
                tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (it is not a dict)
        except (OSError, SafetensorError) as error:
            raise WorkDirectoryError(f"{path} cannot be read: {error}") from error
        self._needs[name] = info["needs"]
        return State(name, tensors, info)

    def _verify(self, name: str) -> None:
        path = self.path / name
        try:
            whole = sha256_file(path) == path.stem.rpartition("-")[2]
        except OSError as error:
            raise WorkDirectoryError(f"{path} cannot be read: {error}") from error
        if not whole:
            raise WorkDirectoryError(f"{path} is damaged: its sha256 is not the one in its name")

    def load_newest(self) -> State | None:
        """The newest state that is whole, together with what it needs; None if there is none.

        A damaged one is set aside with a warning. If none is whole, training starts afresh, without outputs.
        """
        names = sorted(self._names(), key=_ordinal, reverse=True)
        for name in names:
            try:
                state = self.load(name)
                if state.info["needs"] is not None:
                    self._verify(state.info["needs"])
                self._verify_outputs(state.info["outputs"])
            except WorkDirectoryError as error:
                log.warning("%s; using the state before it", error)
                with contextlib.suppress(OSError):
                    (self.path / name).rename(self.path / f"damaged-{name}")  # kept to be looked at
            else:
                return state
        if names:
            log.warning("no state in %s is whole: training starts from the beginning", self.path)
        shutil.rmtree(self.outputs, ignore_errors=True)
        return None

    def _verify_outputs(self, outputs: Mapping[str, str]) -> None:
        for name, digest in outputs.items():
            path = self.outputs / name
            if not path.is_file() or sha256_file(path) != digest:
                raise WorkDirectoryError(f"{path} is missing or damaged")

    def _names(self) -> list[str]:
        return [path.name for path in self.path.glob("state-*.safetensors")]

    # --- notes --------------------------------------------------------------------------------------------

    @property
    def micro_batch(self) -> int | None:
        """Rows of a micro-batch that an earlier attempt came down to."""
        file = self.path / "micro_batch.json"
        return read_json(file) if file.exists() else None

    def note_micro_batch(self, rows: int) -> None:
        with self.writing():
            write_json(self.path / "micro_batch.json", rows)

    def note_attempt(self, invocation: str, steps: int) -> None:
        """Note where this attempt starts.

        Args:
            invocation: of the `snakemake` whose attempt it is: only its own count.
            steps: saved so far, over all segments.

        Raises:
            NoProgress: two earlier attempts started here.
        """
        file = self.path / "attempts.json"
        noted = read_json(file) if file.exists() else {}
        starts = noted["starts"] if noted.get("invocation") == invocation else []
        here = [steps, self.micro_batch]
        if starts[-2:] == [here, here]:
            raise NoProgress(
                f"two attempts got no further than the {steps} steps they started with: see their logs "
                f"above, or the cluster's. The state is kept in {self.path}; start snakemake again to go on"
            )
        with self.writing():
            write_json(file, {"invocation": invocation, "starts": [*starts, here][-2:]})

    # --- outputs ------------------------------------------------------------------------------------------

    def publish(self, target: Path, without: Collection[str] = ()) -> None:
        """Make `target` the run's directory: the outputs appear together, and what was there is gone.

        Args:
            without: names of outputs that stay behind.
        """
        target = Path(target)
        new, old = (target.with_name(f".{target.name}.{part}") for part in ("new", "old"))
        with self.writing():
            for left in (new, old):
                shutil.rmtree(left, ignore_errors=True)
            shutil.copytree(self.outputs, new, ignore=shutil.ignore_patterns(*without), copy_function=_link)
            if target.exists():
                target.rename(old)
            new.rename(target)
            shutil.rmtree(old, ignore_errors=True)

    def remove(self) -> None:
        """Delete the directory: the run is finished, and what cannot be deleted does not change that."""
        try:
            self.delete()
        except OSError as error:
            log.warning("%s is of no more use, but could not be deleted: %s", self.path, error)

    def delete(self) -> None:
        """Delete the directory and let go of the lock. Raises OSError; the lock is let go of all the same."""
        try:
            for each in self.path.iterdir():
                if each.is_dir():
                    shutil.rmtree(each)
                elif each.name != "lock":
                    each.unlink()
            # The last file, as long as it is locked: who opens it before finds it locked, or of no file.
            (self.path / "lock").unlink()
        finally:
            self.close()
        self.path.rmdir()  # NFS keeps a deleted file that is open in its folder, under another name

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Within it an error of the file system becomes a WorkDirectoryError."""
        try:
            yield
        except (OSError, SafetensorError) as error:
            raise WorkDirectoryError(
                f"cannot write in {self.path}: {error}. The last saved state is kept. Make room there or "
                "give another --work, then start again"
            ) from error


def _ordinal(name: str) -> int:
    return int(name.split("-")[1])


def _link(source: str, target: str) -> None:
    """A second name for the file, or a copy where the file system has none; dated now, as an output is."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
    os.utime(target)
