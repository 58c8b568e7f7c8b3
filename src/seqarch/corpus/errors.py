"""What can go wrong between raw text and filtered text."""

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path

from seqarch.errors import SeqarchError


class CorpusError(SeqarchError):
    """The corpus cannot be made from what was given."""


class SourceError(CorpusError):
    """A source cannot be reached, or is not what was pinned."""


class CorruptFileError(CorpusError):
    """A data file or archive is truncated, damaged or hostile."""


class BadRowsError(CorpusError):
    """More rows are unusable than the configuration allows."""


class DiskFullError(CorpusError):
    """No space is left where an output goes."""


@contextlib.contextmanager
def disk_full_as_error(directory: Path) -> Iterator[None]:
    """Turn ENOSPC and EDQUOT into a DiskFullError that names the directory."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise DiskFullError(
            f"no space left on the device of {directory}: free some, or run with another working directory; "
            "nothing half-written was kept, the next run goes on from here"
        ) from error
