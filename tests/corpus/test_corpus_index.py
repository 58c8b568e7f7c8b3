import base64
import hashlib
import os
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from seqarch.corpus.catalogue import ArchiveSpec
from seqarch.corpus.errors import SourceError
from seqarch.corpus.sources.index import Settings, fetch, pip_settings

DATA = b"an archive" * 1000
FILE = "some_project-1.0.tar.gz"


def pin(**changes: Any) -> ArchiveSpec:
    value = {
        "project": "some-project",
        "version": "1.0",
        "file": FILE,
        "size": len(DATA),
        "sha256": hashlib.sha256(DATA).hexdigest(),
    }
    return ArchiveSpec.model_validate(value | changes)


def pip(**settings: str) -> Callable[[], Settings]:
    return lambda: {name.replace("_", "-"): value.split() for name, value in settings.items()}


def in_folder(folder: Path) -> list[str]:
    """What lies in a folder of archives, but for the lock."""
    return sorted(name for name in os.listdir(folder) if not name.endswith(".lock"))


@pytest.fixture
def closed_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def test_an_archive_is_fetched_once(index: Any, tmp_path: Path) -> None:
    index.add("some-project", FILE, DATA)
    for _ in range(2):
        assert fetch(pin(), tmp_path / "archives", pip(index_url=index.url)).read_bytes() == DATA
        assert [path for path, _ in index.seen] == ["/simple/some-project/", f"/files/{FILE}"]


def test_the_settings_are_those_of_pip(index: Any, tmp_path: Path) -> None:
    index.add("some-project", FILE, DATA)
    assert fetch(pin(), tmp_path / "archives").read_bytes() == DATA  # PIP_INDEX_URL is set


def test_several_jobs_that_want_one_archive_fetch_it_once(index: Any, tmp_path: Path) -> None:
    index.add("some-project", FILE, DATA)
    arguments = (pin(), tmp_path / "archives", pip(index_url=index.url))
    threads = [threading.Thread(target=fetch, args=arguments) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert in_folder(tmp_path / "archives") == [FILE]
    assert [path for path, _ in index.seen].count(f"/files/{FILE}") == 1


def test_a_wrong_hash_is_an_error_and_nothing_is_kept(index: Any, tmp_path: Path) -> None:
    index.add("some-project", FILE, DATA[:-1])  # as a cut download is
    with pytest.raises(SourceError, match=pin().sha256):
        fetch(pin(), tmp_path / "archives", pip(index_url=index.url))
    assert in_folder(tmp_path / "archives") == []


def test_a_wrong_archive_in_the_folder_is_not_replaced_in_silence(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"another")
    with pytest.raises(SourceError, match="Delete it and run again"):
        fetch(pin(), tmp_path)
    assert (tmp_path / FILE).read_bytes() == b"another"


def test_no_network_says_what_to_do(pip_alone: pytest.MonkeyPatch, tmp_path: Path, closed_port: int) -> None:
    with pytest.raises(SourceError, match=r"corpus\.source\.archives_dir") as caught:
        fetch(
            pin(),
            tmp_path / "archives",
            pip(index_url=f"http://someone:secret@127.0.0.1:{closed_port}/simple"),
        )
    message = str(caught.value)
    assert f"127.0.0.1:{closed_port}" in message
    assert "refused" in message
    assert "HTTPS_PROXY" in message
    assert "secret" not in message
    assert in_folder(tmp_path / "archives") == []


def test_without_a_network_a_folder_of_archives_is_enough(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(DATA)
    assert fetch(pin(), tmp_path).read_bytes() == DATA
    assert os.listdir(tmp_path) == [FILE]  # not even a lock: the folder may be read-only


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "read only"
    folder.mkdir(mode=0o500)
    mounted = False
    if os.geteuid() == 0:  # whom permissions do not stop
        command = ["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", str(folder)]
        mounted = subprocess.run(command, capture_output=True).returncode == 0
        if not mounted:
            pytest.skip("root may write anywhere, and may not mount here")
    yield folder
    if mounted:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_read_only_folder_without_the_archive_says_so(read_only: Path) -> None:
    with pytest.raises(SourceError, match="cannot be written"):
        fetch(pin(), read_only)


def test_what_one_index_lacks_is_asked_of_the_next(index: Any, tmp_path: Path) -> None:
    index.add("some-project", FILE, DATA)
    both = pip(index_url=index.url.replace("simple", "nothing"), extra_index_url=index.url)
    assert fetch(pin(), tmp_path / "archives", both).read_bytes() == DATA
    with pytest.raises(SourceError, match=r"no file some_project-2\.0") as caught:
        fetch(pin(file="some_project-2.0.tar.gz"), tmp_path / "archives", both)
    assert "nothing" in str(caught.value)


@pytest.mark.parametrize("setting", ["find_links", "extra_index_url"])
def test_folders_on_this_machine_come_first(tmp_path: Path, closed_port: int, setting: str) -> None:
    root = tmp_path / "some%20folder"
    folder = root / "some-project" if setting == "extra_index_url" else root
    folder.mkdir(parents=True)
    (folder / FILE).write_bytes(DATA)
    settings = {"index_url": f"http://127.0.0.1:{closed_port}/simple", setting: root.as_uri()}
    assert fetch(pin(), tmp_path / "archives", pip(**settings)).read_bytes() == DATA


def test_credentials_go_to_the_index_alone(index: Any, pip_alone: pytest.MonkeyPatch, tmp_path: Path) -> None:
    index.add("some-project", FILE, DATA)
    page = index.folder / "simple/some-project/index.html"
    elsewhere = index.url.replace("127.0.0.1", "localhost").removesuffix("/simple/")  # PyPI's files, too
    page.write_text(page.read_text().replace('href="', f'href="{elsewhere}'))
    pip_alone.setenv("NO_PROXY", "127.0.0.1,localhost")
    fetch(pin(), tmp_path / "archives", pip(index_url=index.url.replace("://", "://me:p%40ss@")))
    basic = "Basic " + base64.b64encode(b"me:p@ss").decode()
    assert index.seen == [("/simple/some-project/", basic), (f"/files/{FILE}", None)]


def test_files_and_variables_of_pip(pip_alone: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "pip.conf"
    file.write_text(
        "[global]\nindex-url = https://a/simple\nextra-index-url =\n    https://b\n    https://c\n"
    )
    pip_alone.setenv("PIP_CONFIG_FILE", str(file))
    pip_alone.setenv("PIP_INDEX_URL", "https://d/simple")
    pip_alone.setenv("PIP_NO_INDEX", "false")
    found = pip_settings()
    assert found["index-url"] == ["https://d/simple"]
    assert found["extra-index-url"] == ["https://b", "https://c"]
    assert "no-index" not in found


def test_no_index_means_none(index: Any, tmp_path: Path) -> None:
    index.add("some-project", FILE, DATA)
    with pytest.raises(SourceError, match="pip is set to use no index"):
        fetch(pin(), tmp_path / "archives", pip(index_url=index.url, no_index="1"))
    assert index.seen == []


def test_what_a_killed_download_left_is_removed(index: Any, tmp_path: Path) -> None:
    index.add("some-project", FILE, DATA)
    (tmp_path / f".{FILE}.abc.tmp.gz").write_bytes(b"part")
    fetch(pin(), tmp_path, pip(index_url=index.url))
    assert [name for name in in_folder(tmp_path) if name != "index"] == [FILE]
