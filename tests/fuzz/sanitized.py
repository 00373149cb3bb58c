"""The decoder compiled with AddressSanitizer and UndefinedBehaviorSanitizer, for the processes of `make fuzz`.

Nothing is kept for reuse in such a build (`native/blocks.c`), so that each block of memory ends where it was asked to.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
DECODER = "KZCONSUMER_FUZZ_DECODER"
FLAGS = "-O1 -g -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all"

_COMPILE = """
import sys
from pathlib import Path
from hatch_build import compile_decoder
compile_decoder(Path(sys.argv[1]), Path(sys.argv[2]))
"""


def build(into: Path, root: Path = ROOT) -> dict[str, str] | None:
    """Variables for processes that are to use such a decoder; None if the compiler here cannot make one."""
    return compile_with(os.environ.get("CC", "cc"), FLAGS, "libasan.so", into, root)


def compile_with(compiler: str, flags: str, runtime: str, into: Path, root: Path) -> dict[str, str] | None:
    """The same by this compiler, whose library `runtime` has the sanitizer."""
    made = into / "_native.so"
    try:
        subprocess.run(
            [sys.executable, "-c", _COMPILE, root, made],
            cwd=ROOT,
            env=os.environ | {"CC": compiler, "CFLAGS": flags},
            capture_output=True,
            check=True,
        )
        library = library_of(compiler, runtime)
    except (OSError, subprocess.CalledProcessError):
        return None
    if library is None:
        return None
    return {
        DECODER: str(made),
        "LD_PRELOAD": library,
        # Python ends without freeing everything; and its objects come from malloc, so that their bounds are known, too.
        "ASAN_OPTIONS": "detect_leaks=0",
        "PYTHONMALLOC": "malloc",
    }


def library_of(compiler: str, name: str) -> str | None:
    """Its path, if the compiler knows it."""
    asked = subprocess.run([compiler, f"-print-file-name={name}"], capture_output=True, text=True, check=True)
    library = asked.stdout.strip()
    return library if Path(library).is_absolute() else None


def use() -> None:
    """Import the decoder that `build` has made, if this process is to use it."""
    if (path := os.environ.get(DECODER)) is None:
        return
    name = "kzconsumer.records._native"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    import kzconsumer.records

    kzconsumer.records._native = module
