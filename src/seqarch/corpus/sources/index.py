"""Fetching pinned archives from a Python package index, as pip is configured to. Nothing fetched is run."""

import ast
import contextlib
import errno
import fcntl
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit
from urllib.request import url2pathname

import requests
from pypi_simple import (
    NoSuchProjectError,
    PyPISimple,
    UnsupportedContentTypeError,
    UnsupportedRepoVersionError,
)
from requests.adapters import HTTPAdapter
from requests.auth import AuthBase, HTTPBasicAuth
from urllib3.util import Retry

from seqarch.corpus.catalogue import ArchiveSpec
from seqarch.corpus.errors import SourceError, disk_full_as_error
from seqarch.files import atomic_path, sha256_file

log = logging.getLogger(__name__)
PYPI = "https://pypi.org/simple/"
TIMEOUT = (10.0, 60.0)  # seconds to connect, and between two packets
_NOT_AN_INDEX = (NoSuchProjectError, UnsupportedContentTypeError, UnsupportedRepoVersionError)
_PIP_SETTINGS = ("index-url", "extra-index-url", "find-links", "no-index", "cert", "client-cert", "proxy")


Settings = dict[str, list[str]]


def fetch(archive: ArchiveSpec, directory: Path, settings: Callable[[], Settings] | None = None) -> Path:
    """The archive in `directory`, whole and with the pinned sha256: found there, copied or downloaded.

    Looked for in `directory`, in pip's `find-links` folders, then on pip's `index-url` and `extra-index-url`
    (else pypi.org), with pip's proxy and certificates and those of the environment. Several processes may
    ask for the same archive at once: one fetches, the others wait. Nothing is written if all is there
    already.

    Args:
        settings: where pip's settings come from if they are needed; by default `pip_settings`.

    Raises:
        SourceError: a wrong hash, no network, or no such file anywhere.
        DiskFullError: no space in `directory`.
    """
    target = directory / archive.file
    if target.is_file():
        _check_hash(target, archive, f"{directory}")
        return target
    with disk_full_as_error(directory), _locked(directory, archive):
        for left in directory.glob(f".{archive.file}.*.tmp*"):  # of a killed process: the lock is ours
            left.unlink()
        if not target.is_file():
            _copy_or_download(archive, target, (settings or pip_settings)())
    return target


@contextlib.contextmanager
def _locked(directory: Path, archive: ArchiveSpec) -> Iterator[None]:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        file = open(directory / f".{archive.file}.lock", "w")  # noqa: SIM115 - closed below
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EROFS, errno.EPERM):
            raise
        raise SourceError(
            f"{directory} has no {archive.file} and cannot be written to: lay the archive there, or set "
            "corpus.source.archives_dir to a folder that has it or may be written to"
        ) from error
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _check_hash(file: Path, archive: ArchiveSpec, place: str) -> None:
    found = sha256_file(file)
    if found != archive.sha256:
        raise SourceError(
            f"{archive.file} from {place} has sha256 {found} ({file.stat().st_size} bytes), but the "
            f"catalogue pins {archive.sha256} ({archive.size} bytes): the file is damaged or another one. "
            "Delete it and run again, or take it from another place; change the pin only if you mean to use "
            "this very file"
        )


def _copy_or_download(archive: ArchiveSpec, target: Path, settings: Settings) -> None:
    urls = [*settings.get("index-url", [PYPI]), *settings.get("extra-index-url", [])]
    if settings.get("no-index"):
        urls = []
    folders = [_local(place) for place in settings.get("find-links", [])]
    folders += [root / archive.project for root in map(_local, urls) if root is not None]
    for folder in folders:
        if folder is not None and (folder / archive.file).is_file():
            _check_hash(folder / archive.file, archive, f"{folder}")
            with atomic_path(target) as temporary:
                shutil.copyfile(folder / archive.file, temporary)
            return
    tried = []
    for url in (url for url in urls if _local(url) is None):
        try:
            _download(archive, url, settings, target)
            return
        except (requests.RequestException, *_NOT_AN_INDEX) as error:
            tried.append(f"  {_without_password(url)}: {_short(error)}")
    raise SourceError(
        f"{target.parent} has no {archive.file}, and it cannot be fetched:\n"
        + "\n".join(tried or ["  pip is set to use no index"])
        + "\n"
        "Check the network, the proxy (HTTPS_PROXY), the certificates (PIP_CERT, REQUESTS_CA_BUNDLE, "
        "SSL_CERT_FILE) and pip's index-url. Without a network: download the archives elsewhere, lay them in "
        "a folder and set corpus.source.archives_dir to it"
    )


def _download(archive: ArchiveSpec, url: str, settings: Settings, target: Path) -> None:
    with _session(url, settings) as session, PyPISimple(url, session=session) as index:
        page = index.get_project_page(archive.project, timeout=TIMEOUT)
        package = next((each for each in page.packages if each.filename == archive.file), None)
        if package is None:
            raise requests.RequestException(f"has {archive.project}, but no file {archive.file}")
        log.info("fetching %s (%.1f MB)", archive.file, archive.size / 1e6)
        with atomic_path(target) as temporary:
            index.download_package(package, temporary, verify=False, timeout=TIMEOUT)
            _check_hash(temporary, archive, _without_password(url))


def _session(url: str, settings: Settings) -> requests.Session:
    """A session with pip's certificates, proxy and credentials. requests itself honours the proxy variables,
    REQUESTS_CA_BUNDLE, CURL_CA_BUNDLE and .netrc."""
    session = requests.Session()
    retries = HTTPAdapter(
        max_retries=Retry(3, backoff_factor=0.2, status_forcelist=(429, 500, 502, 503, 504))
    )
    session.mount("https://", retries)
    session.mount("http://", retries)
    certificates = [*settings.get("cert", []), os.environ.get("SSL_CERT_FILE")]
    session.verify = next((path for path in certificates if path), True)
    if settings.get("client-cert"):
        session.cert = settings["client-cert"][0]
    if settings.get("proxy"):
        session.proxies = {"http": settings["proxy"][0], "https": settings["proxy"][0]}
    parts = urlsplit(url)
    if parts.username:
        session.auth = _SameHost(parts.hostname, unquote(parts.username), unquote(parts.password or ""))
    return session


class _SameHost(AuthBase):
    """An index's credentials, for that index's host only: files may lie on another."""

    def __init__(self, host: str | None, username: str, password: str) -> None:
        self.host, self.basic = host, HTTPBasicAuth(username, password)

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        same = urlsplit(request.url or "").hostname == self.host
        return self.basic(request) if same else request


def pip_settings() -> Settings:
    """pip's settings about indexes, each as a list: later ones of `pip config list` win, the environment
    last.

    Where there is no pip (other installers leave it out) the PIP_* variables alone.
    """
    lines = [
        f":env:.{key[4:].lower().replace('_', '-')}={value!r}"
        for key, value in os.environ.items()
        if key[:4] == "PIP_"
    ]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        command = [sys.executable, "-m", "pip", "config", "list"]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
        lines = done.stdout.splitlines()
    order = {"global": 0, "download": 1, "install": 1, ":env:": 2}
    settings: dict[str, tuple[int, list[str]]] = {}
    for line in lines:
        name, equals, value = line.partition("=")
        section, _, key = name.rpartition(".")
        if not equals or key not in _PIP_SETTINGS or section not in order:
            continue
        if key not in settings or settings[key][0] <= order[section]:
            settings[key] = (order[section], _words(value))
    values = {key: value for key, (_, value) in settings.items() if value}
    if values.get("no-index", ["0"])[0].lower() in ("0", "false", "no", "off"):
        values.pop("no-index", None)
    return values


def _words(value: str) -> list[str]:
    with contextlib.suppress(ValueError, SyntaxError):
        value = str(ast.literal_eval(value))
    return value.split()


def _local(place: str) -> Path | None:
    """The folder that a file URL or a path means; None for other URLs."""
    parts = urlsplit(place)
    if parts.scheme == "file":
        return Path(url2pathname(parts.path))
    return None if parts.scheme in ("http", "https") else Path(place).expanduser()


def _without_password(url: str) -> str:
    parts = urlsplit(url)
    return (
        url
        if "@" not in parts.netloc
        else parts._replace(netloc="…@" + parts.netloc.rpartition("@")[2]).geturl()
    )


def _short(error: Exception) -> str:
    """The reason at the end of requests' chain of reprs, without the URL and its password."""
    reason: BaseException = error
    while (inner := getattr(reason, "reason", None) or (reason.args and reason.args[0])) and isinstance(
        inner, Exception
    ):
        reason = inner
    if isinstance(error, requests.HTTPError) and error.response is not None:
        return f"HTTP {error.response.status_code}"
    return str(reason).rpartition(": ")[2] or type(reason).__name__
