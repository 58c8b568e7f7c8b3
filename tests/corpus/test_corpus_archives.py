import io
import random
import stat
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from seqarch.corpus import archives
from seqarch.corpus.archives import damage_as_error, matcher, members
from seqarch.corpus.errors import CorruptFileError, SourceError

TEXTS = {
    "top-1.0/docs/a.txt": b"first " * 2000,
    "top-1.0/docs/deep/b.txt": b"second",
    "top-1.0/src/c.py": b"third",
}


def tar(
    path: Path, texts: dict[str, bytes] = TEXTS, extra: Callable[[tarfile.TarFile], None] | None = None
) -> Path:
    with tarfile.open(path, "w:gz") as file:
        for name, data in texts.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            file.addfile(info, io.BytesIO(data))
        if extra:
            extra(file)
    return path


def read(path: Path, *globs: str, exclude: tuple[str, ...] = ()) -> dict[str, bytes]:
    with damage_as_error(path):
        return {name: file.read() for name, file in members(path, matcher(globs or ["**"], exclude))}


def test_members_by_glob_in_archive_order(tmp_path: Path) -> None:
    path = tar(tmp_path / "a.tar.gz")
    assert list(read(path)) == ["docs/a.txt", "docs/deep/b.txt", "src/c.py"]
    assert list(read(path, "docs/*.txt")) == ["docs/a.txt"]
    assert list(read(path, "docs/**/*.txt")) == ["docs/a.txt", "docs/deep/b.txt"]
    assert read(path, "**", exclude=("docs/**",)) == {"src/c.py": b"third"}


def test_a_zip_reads_like_a_tar(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in TEXTS.items():
            file.writestr(name, data)
    assert read(tmp_path / "a.zip") == read(tar(tmp_path / "a.tar.gz"))


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE])
def test_a_link_is_never_followed(tmp_path: Path, kind: bytes) -> None:
    def link(file: tarfile.TarFile) -> None:
        info = tarfile.TarInfo("top-1.0/docs/passwd.txt")
        info.type, info.linkname = kind, "/etc/passwd"
        file.addfile(info)

    path = tar(tmp_path / "a.tar.gz", extra=link)
    assert list(read(path, "src/*")) == ["src/c.py"]
    with pytest.raises(CorruptFileError, match="passwd"):
        read(path, "docs/**")


def test_a_link_in_a_zip_is_never_followed(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as file:
        info = zipfile.ZipInfo("top-1.0/docs/passwd.txt")
        info.external_attr = (stat.S_IFLNK | 0o777) << 16
        file.writestr(info, "/etc/passwd")
    with pytest.raises(CorruptFileError, match="passwd"):
        read(tmp_path / "a.zip")


@pytest.mark.parametrize("name", ["top/../../escape.txt", "/etc/escape.txt"])
def test_a_path_that_leaves_the_archive_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(CorruptFileError, match="escape"):
        read(tar(tmp_path / "a.tar.gz", {name: b"x"}))


def test_devices_are_no_texts(tmp_path: Path) -> None:
    def device(file: tarfile.TarFile) -> None:
        info = tarfile.TarInfo("top-1.0/docs/zero.txt")
        info.type = tarfile.CHRTYPE
        file.addfile(info)

    assert list(read(tar(tmp_path / "a.tar.gz", extra=device), "docs/*")) == ["docs/a.txt"]


@pytest.mark.parametrize(
    ("limit", "value"), [("MAX_MEMBER", 1000), ("MAX_TOTAL", 10_000), ("MAX_MEMBERS", 2)]
)
def test_a_bomb_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    monkeypatch.setattr(archives, limit, value)
    with pytest.raises(CorruptFileError, match=r"a\.tar\.gz"):
        read(tar(tmp_path / "a.tar.gz"))


def test_a_truncated_archive_is_an_error_that_names_it(tmp_path: Path) -> None:
    texts = {f"top/{i}.txt": random.Random(i).randbytes(300 * i) for i in range(40)}
    whole = tar(tmp_path / "whole.tar.gz", texts).read_bytes()
    for cut in (0, 5, 100, len(whole) // 2, len(whole) * 9 // 10):
        path = tmp_path / "cut.tar.gz"
        path.write_bytes(whole[:cut])
        with pytest.raises(CorruptFileError, match=r"cut\.tar\.gz is truncated or damaged"):
            read(path)


def test_a_truncated_zip_is_an_error_that_names_it(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("top/a.txt", "text")
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(CorruptFileError, match=r"a\.zip is truncated or damaged"):
        read(path)


def test_a_missing_archive_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="run the `sources` step again"):
        read(tmp_path / "none.tar.gz")
