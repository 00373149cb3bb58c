"""Compiles the record decoder (`kzconsumer/records/native`) with the C compiler that is there, else with Zig's.

`python hatch_build.py` compiles it in place, if a source is newer than what is there; `--requires` prints the packages
needed for that. The variables CC and CFLAGS are heeded, as by other builds.

For an index, KZCONSUMER_TARGET names another machine as Zig does, with the oldest C library that it may have:
`x86_64-linux-gnu.2.17`, `aarch64-linux-musl`. Zig has these libraries, so every wheel is compiled on any machine.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

SOURCES = "kzconsumer/records/native"
MODULE = "kzconsumer/records/_native"
ZIG = "ziglang>=0.13"
FLAGS = ["-std=c11", "-DPY_SSIZE_T_CLEAN", "-O3", "-g0", "-Wall", "-Wextra", "-fPIC", "-fvisibility=hidden", "-shared"]
TARGET = os.environ.get("KZCONSUMER_TARGET", "")
STABLE_ABI = not sysconfig.get_config_var("Py_GIL_DISABLED")
"""One build serves Python 3.11 and later, and needs no headers of it; a free-threaded Python has none of that."""


def installed_compiler() -> list[str] | None:
    """CC, or the compiler that Python was built with, or any other; None if there is none."""
    if os.environ.get("CC"):
        return shlex.split(os.environ["CC"])
    for name in (sysconfig.get_config_var("CC") or "cc", "cc", "gcc", "clang"):
        command = shlex.split(name)
        if shutil.which(command[0]):
            return command
    return None


def compiler() -> list[str]:
    """The command of a C compiler."""
    if TARGET:
        return [sys.executable, "-m", "ziglang", "cc", "-target", TARGET]
    return installed_compiler() or [sys.executable, "-m", "ziglang", "cc"]


def requires() -> list[str]:
    return [ZIG] if TARGET or not installed_compiler() else []


def platform_tag() -> str:
    """Of the wheel: the machines that can use it (PEP 600, PEP 656)."""
    if not TARGET:
        return re.sub("[-.]", "_", sysconfig.get_platform())
    processor, _, library = TARGET.split("-")
    name, *version = library.split(".")
    return f"{'_'.join(['manylinux', *version] if name == 'gnu' else ['musllinux_1_2'])}_{processor}"


def target(root: Path) -> Path:
    """Where the extension is imported from."""
    return root / f"{MODULE}{'.abi3.so' if STABLE_ABI else sysconfig.get_config_var('EXT_SUFFIX')}"


def compile_decoder(root: Path, made: Path) -> None:
    """Compile the extension to a file, whatever is there."""
    began = time.time()
    unfinished = made.with_name(f"_{os.getpid()}_{made.name}")
    command = [
        *compiler(),
        *FLAGS,
        "-DPy_LIMITED_API=0x030B0000" if STABLE_ABI else f"-I{sysconfig.get_path('include')}",
        *(["-undefined", "dynamic_lookup"] if sys.platform == "darwin" else []),
        *shlex.split(os.environ.get("CFLAGS", "")),
        *(str(source.relative_to(root)) for source in sorted((root / SOURCES).glob("*.c"))),
        "-o",
        str(unfinished),
    ]
    try:
        subprocess.run(command, cwd=root, check=True)
        os.utime(unfinished, (began, began))  # a source may have been changed meanwhile
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
            if STABLE_ABI:
                build_data["tag"] = f"cp311-abi3-{platform_tag()}"
            else:
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
