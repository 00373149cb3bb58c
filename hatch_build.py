"""Compiles the record decoder (`kzconsumer/records/native`) with the C compiler that is there, else with Zig's.

`python hatch_build.py` compiles it in place, if a source is newer than what is there; `--requires` prints the packages
needed for that. The variables CC and CFLAGS are heeded, as by other builds.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

SOURCES = "kzconsumer/records/native"
MODULE = "kzconsumer/records/_native"
ZIG = "ziglang>=0.13"
FLAGS = ["-std=c11", "-DPY_SSIZE_T_CLEAN", "-O3", "-g0", "-Wall", "-Wextra", "-fPIC", "-fvisibility=hidden", "-shared"]


def compiler() -> list[str] | None:
    """The command of a C compiler: CC, or the one that Python was built with, or any other; None if there is none."""
    if os.environ.get("CC"):
        return shlex.split(os.environ["CC"])
    for name in (sysconfig.get_config_var("CC") or "cc", "cc", "gcc", "clang"):
        command = shlex.split(name)
        if shutil.which(command[0]):
            return command[:1]
    return None


def requires() -> list[str]:
    return [] if compiler() else [ZIG]


def target(root: Path) -> Path:
    """Where the extension is imported from."""
    return root / f"{MODULE}{sysconfig.get_config_var('EXT_SUFFIX')}"


def compile_decoder(root: Path, made: Path) -> None:
    """Compile the extension to a file, whatever is there."""
    headers = Path(sysconfig.get_path("include"))
    if not (headers / "Python.h").exists():
        raise SystemExit(f"{headers}/Python.h is missing: install Python's headers (Debian: python3-dev)")
    unfinished = made.with_name(f"{made.name}.{os.getpid()}")
    command = [
        *(compiler() or [sys.executable, "-m", "ziglang", "cc"]),
        *FLAGS,
        f"-I{headers}",
        *shlex.split(os.environ.get("CFLAGS", "")),
        *(str(source.relative_to(root)) for source in sorted((root / SOURCES).glob("*.c"))),
        "-o",
        str(unfinished),
    ]
    try:
        subprocess.run(command, cwd=root, check=True)
        unfinished.rename(made)  # at once: a process may be importing it
    finally:
        unfinished.unlink(missing_ok=True)


def is_stale(root: Path) -> bool:
    made = target(root)
    used = [*(root / SOURCES).glob("*.[ch]"), root / "hatch_build.py"]
    return not made.exists() or made.stat().st_mtime < max(each.stat().st_mtime for each in used)


def main() -> None:
    root = Path(__file__).parent
    if sys.argv[1:] == ["--requires"]:
        print(*requires())
    elif is_stale(root):
        compile_decoder(root, target(root))


if __name__ == "__main__":
    main()
else:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface

    class CompiledDecoder(BuildHookInterface[Any]):
        """Adds the extension to the wheel, or compiles it in place for an editable install."""

        def dependencies(self) -> list[str]:
            return requires()

        def initialize(self, version: str, build_data: dict[str, Any]) -> None:
            build_data["pure_python"] = False
            build_data["infer_tag"] = True
            self._folder = TemporaryDirectory()
            root = Path(self.root)
            if version == "editable":
                compile_decoder(root, target(root))
            else:
                made = target(Path(self._folder.name))
                made.parent.mkdir(parents=True)
                compile_decoder(root, made)
                build_data["force_include"][str(made)] = str(target(root).relative_to(root))

        def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
            self._folder.cleanup()
