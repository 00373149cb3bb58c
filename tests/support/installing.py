"""Our distributions as users get them: built, and installed into a virtual environment with nothing else.

For `tests/core/plain/test_install.py`.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
DISTRIBUTIONS = {
    "kzconsumer": ".",
    **{
        f"kzconsumer_{each.parent.name}": f"plugins/{each.parent.name}"
        for each in ROOT.glob("plugins/*/pyproject.toml")
    },
}


def run(*words: str | Path, within: Path, path: Path | None = None, limit: float = 120) -> str:
    """The standard output of a command; fails with all its output. `path` is searched for commands first."""
    inherited = {name: os.environ[name] for name in os.environ if not name.startswith(("PYTHON", "KZCONSUMER"))}
    first = {"PATH": f"{path}{os.pathsep}{os.environ['PATH']}"} if path else {}
    done = subprocess.run(
        words, cwd=within, env=inherited | first, capture_output=True, text=True, timeout=limit, check=False
    )
    assert done.returncode == 0, f"{' '.join(map(str, words))}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


# As `python -m build --no-isolation`, which starts five processes for it. Without optimization it takes half the time.
_QUICKLY = {"CFLAGS": "-O0"}
_BUILD = """
import os, pathlib, sys, tarfile, tempfile
from hatchling import build
into = sys.argv[1]
sources = build.build_sdist(into)
with tempfile.TemporaryDirectory() as at:
    with tarfile.open(pathlib.Path(into, sources)) as archive:
        archive.extractall(at, filter="data")
    os.chdir(pathlib.Path(at, sources.removesuffix(".tar.gz")))
    build.build_wheel(into)
"""


def build(into: Path, *, isolated: bool) -> list[Path]:
    """A source distribution of each, and the wheel that is built from it. Isolated, each is built with its declared
    requirements, by Zig for any Linux as for an index.
    """
    how = ("-m", "build", "--outdir") if isolated else ("-c", _BUILD)
    variables = {"KZCONSUMER_TARGET": f"{platform.machine()}-linux-gnu.2.17"} if isolated else _QUICKLY
    children = [
        subprocess.Popen(
            [sys.executable, *how, into],
            cwd=ROOT / folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=os.environ | variables,
        )
        for folder in DISTRIBUTIONS.values()
    ]
    output = [child.communicate(timeout=900 if isolated else 300)[0].decode() for child in children]
    assert not any(child.returncode for child in children), "\n".join(output)
    return sorted(into.iterdir())


def build_core(into: Path) -> Path:
    """The wheel of the core alone."""
    program = "import sys; from hatchling import build; build.build_wheel(sys.argv[1])"
    subprocess.run([sys.executable, "-c", program, into], cwd=ROOT, env=os.environ | _QUICKLY, check=True, timeout=120)
    (wheel,) = into.iterdir()
    return wheel


def interpreter(version: str) -> Path | None:
    """A Python of that version that can create virtual environments: from `PATH`, pyenv or uv."""
    named: list[Path | str] = [f"python{version}"] if shutil.which(f"python{version}") else []
    named += (Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python")
    if uv := shutil.which("uv") or shutil.which("uv", path=str(Path(sys.executable).parent)):
        found = subprocess.run(
            [uv, "python", "find", "--no-python-downloads", version], capture_output=True, text=True, check=False
        )
        named += found.stdout.split()
    for each in named:
        asked = "import ensurepip, sys, venv; print('%d.%d' % sys.version_info[:2])"
        done = subprocess.run([each, "-c", asked], capture_output=True, text=True, check=False)
        if done.stdout.strip() == version:
            return Path(shutil.which(each) or each)
    return None


def environment(python: Path, at: Path, wheels: Sequence[Path]) -> Path:
    """An empty environment with all distributions by their extras, from the directory of the wheels.

    Returns its directory of commands.
    """
    run(python, "-m", "venv", at, within=at.parent)
    wanted = "kzconsumer[files,sandbox,spark,sticky,tools]"
    run(at / "bin" / "pip", "install", "--quiet", "--find-links", wheels[0].parent, wanted, within=at.parent, limit=900)
    return at / "bin"


def borrowing_environment(at: Path, wheels: Sequence[Path]) -> Path:
    """An environment with the wheels alone, which finds their requirements in this Python."""
    run(sys.executable, "-m", "venv", "--without-pip", at, within=at.parent)
    if wheels:
        pip = (sys.executable, "-m", "pip", "--python", at / "bin" / "python")
        run(*pip, "install", "--quiet", "--no-deps", "--no-index", *wheels, within=at.parent)
    (packages,) = (at / "lib").glob("python*/site-packages")
    here = [each for each in sys.path if each.endswith("site-packages")]
    (packages / "borrowed.pth").write_text("\n".join(here))
    return at / "bin"


def declared_environment(at: Path, wheel: Path) -> Path:
    """An environment with a wheel and the packages that it declares to need, linked from this Python; nothing else."""
    commands = borrowing_environment(at, [wheel])
    (packages,) = (at / "lib").glob("python*/site-packages")
    (packages / "borrowed.pth").unlink()
    metadata = run(commands / "python", "-c", REQUIRES.format(name=wheel.name.partition("-")[0]), within=at.parent)
    for name in _closure(metadata.splitlines()):
        distribution = importlib.metadata.distribution(name)
        for first in {Path(each).parts[0] for each in distribution.files or ()} - {"..", "__pycache__"}:
            (packages / first).symlink_to(str(distribution.locate_file(first)))
    return commands


REQUIRES = "import importlib.metadata as m; print(*m.requires('{name}') or (), sep='\\n')"


def _closure(lines: Iterable[str]) -> set[str]:
    """The names of all distributions reached by requirements without extras."""
    found: set[str] = set()
    left = [Requirement(line) for line in lines]
    while left:
        each = left.pop()
        if (each.marker is None or each.marker.evaluate({"extra": ""})) and each.name not in found:
            found.add(each.name)
            left += map(Requirement, importlib.metadata.requires(each.name) or ())
    return found


def shell_commands(at: Path) -> Path:
    """The commands of this environment for a shell: `kzconsumer`, `python`, and a `pip` that uses no index."""
    commands = borrowing_environment(at, [])
    python = commands / "python"
    (packages,) = (at / "lib").glob("python*/site-packages")
    ours = [each for each in sys.path if each and Path(each).is_dir() and not each.startswith(sys.base_prefix)]
    (packages / "borrowed.pth").write_text("\n".join(ours))
    pip = f'exec {python} -m pip "$1" --no-build-isolation --no-index --disable-pip-version-check "${{@:2}}"'
    for name, does in {"kzconsumer": f'exec {python} -m kzconsumer "$@"', "pip": pip}.items():
        (commands / name).write_text(f"#!/bin/bash\n{does}\n")
        (commands / name).chmod(0o755)
    return commands
