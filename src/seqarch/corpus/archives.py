"""Reading members of an archive one after another, without unpacking it and without trusting it."""

import contextlib
import lzma
import re
import stat
import tarfile
import xml.etree.ElementTree as ET
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO

from fsspec.utils import glob_translate

from seqarch.corpus.errors import CorruptFileError, SourceError

MAX_MEMBER = 256 << 20  # bytes of one wanted member
MAX_TOTAL = 4 << 30  # bytes of all members: what a bomb would have us decompress
MAX_MEMBERS = 200_000
_DAMAGE = (tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, ET.ParseError)


def matcher(globs: Sequence[str], exclude: Sequence[str] = ()) -> Callable[[str], bool]:
    """Whether a path matches one of `globs` and none of `exclude`; `**` stands for any number of folders."""
    wanted = [re.compile(glob_translate(glob)) for glob in globs]
    unwanted = [re.compile(glob_translate(glob)) for glob in exclude]
    return lambda path: any(p.match(path) for p in wanted) and not any(p.match(path) for p in unwanted)


def members(archive: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, IO[bytes]]]:
    """(path below the archive's top folder, open file) of each wanted regular member, in archive order.

    A member is read by the caller, who does it within `damage_as_error`.

    Args:
        wanted: is asked with the path below the top folder.

    Raises:
        CorruptFileError: truncated, damaged, or not an archive; a wanted member is a link, has a path that
            leaves the archive, or is larger than `MAX_MEMBER`; all members together pass `MAX_TOTAL` or
            `MAX_MEMBERS`.
        SourceError: the archive cannot be opened.
    """
    reader = _zip_members if archive.suffix in (".zip", ".whl") else _tar_members
    total = 0
    with damage_as_error(archive):
        for count, (name, size, is_regular, is_link, opened) in enumerate(reader(archive), start=1):
            total += size
            if total > MAX_TOTAL or count > MAX_MEMBERS:
                raise CorruptFileError(
                    f"{archive}: more than {MAX_TOTAL} bytes or {MAX_MEMBERS} members; not read on"
                )
            path = _below_top(name)
            if path is None or not wanted(path):
                continue
            if ".." in name.split("/") or name.startswith("/") or is_link:
                raise CorruptFileError(
                    f"{archive}: member {name!r} is a link or leaves the archive: not a text to read"
                )
            if not is_regular:
                continue
            if size > MAX_MEMBER:
                raise CorruptFileError(f"{archive}: member {name!r} has {size} bytes, more than {MAX_MEMBER}")
            with opened() as file:
                yield path, file


@contextlib.contextmanager
def damage_as_error(archive: Path) -> Iterator[None]:
    """Turn what the standard library raises on a damaged archive, or on a damaged member of one, into an
    error that names the archive."""
    try:
        yield
    except FileNotFoundError as error:
        raise SourceError(f"{archive} is missing: run the `sources` step again") from error
    except (*_DAMAGE, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # the disk's, not a decompressor's
            raise
        message = f"{archive} is truncated or damaged ({error}): delete it and run again"
        raise CorruptFileError(message) from error


_Member = tuple[str, int, bool, bool, Callable[[], contextlib.AbstractContextManager[IO[bytes]]]]


def _tar_members(archive: Path) -> Iterator[_Member]:
    with tarfile.open(archive, "r|*") as tar:
        for info in tar:

            def opened(info: tarfile.TarInfo = info) -> IO[bytes]:
                file = tar.extractfile(info)
                assert file is not None  # regular members only
                return file

            yield info.name, info.size, info.isfile(), info.issym() or info.islnk(), opened


def _zip_members(archive: Path) -> Iterator[_Member]:
    with zipfile.ZipFile(archive) as file:
        for info in file.infolist():
            is_link = stat.S_ISLNK(info.external_attr >> 16)

            def opened(info: zipfile.ZipInfo = info) -> IO[bytes]:
                return file.open(info)  # reads no more than `file_size`, whatever the data say

            yield info.filename, info.file_size, not info.is_dir(), is_link, opened


def _below_top(name: str) -> str | None:
    _, slash, rest = name.removeprefix("./").partition("/")
    return rest if slash and rest else None
