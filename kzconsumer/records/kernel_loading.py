"""Loads numba's kernels and caches them on disk; until they are loaded, and where they fail, plain Python's are used.

Importing this module does not import numba (0.8 s).
"""

from __future__ import annotations

import hashlib
import os
import threading
from pathlib import Path
from typing import Any

from kzconsumer.records.kernel_set import KernelSet
from kzconsumer.records.python_kernels import PYTHON_KERNELS

_SOURCES = ("kernels.py", "framing_kernels.py", "batch_kernels.py", "message_kernels.py", "pointers.py", "layout.py")

_lock = threading.Lock()
_loaded: KernelSet | None = None
_description = "python: numba's kernels are not loaded yet"


def ready_kernels() -> KernelSet | None:
    """numba's kernels, or Python's if numba failed; None while they are not loaded."""
    return _loaded


def load_kernels() -> KernelSet:
    """Load the kernels from the cache or compile them; the first call takes 0.5 to 15 s. Never raises."""
    global _loaded, _description
    with _lock:
        if _loaded is None:
            _loaded, _description = _load()
        return _loaded


def kernels_in_use() -> str:
    """`numba`, `numba, not cached: <why>` or `python: <why>`. Anything but `numba` deserves a warning at start."""
    return _description


def _load() -> tuple[KernelSet, str]:
    try:
        return _compile(_cache_folder()), "numba"
    except Exception as error:
        why_not_cached = _line(error)
    try:
        return _compile(None), f"numba, not cached: {why_not_cached}"
    except Exception as error:  # of numba or LLVM: the Python kernels give the same results
        return PYTHON_KERNELS, f"python: {_line(error)}"


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


def _compile(cache: Path | None) -> KernelSet:
    import numba.core.config

    from kzconsumer.records.kernels import compile_all

    # numba fixes a function's cache folder when it is decorated; the setting is process-wide, so it is put back.
    settings: Any = numba.core.config
    before = settings.CACHE_DIR
    if cache is not None:
        settings.CACHE_DIR = str(cache)
    try:
        return compile_all(cache=cache is not None)
    finally:
        settings.CACHE_DIR = before


def _cache_folder() -> Path:
    """A writable folder for this version of the kernels' sources: numba notices changes in a kernel's own file only.

    Under NUMBA_CACHE_DIR, else systemd's CacheDirectory=, else the user's cache folder. Raises OSError or RuntimeError.
    """
    here = Path(__file__).parent
    source = b"".join((here / name).read_bytes() for name in _SOURCES)
    systemd = os.environ.get("CACHE_DIRECTORY", "").split(":")[0]
    base = os.environ.get("NUMBA_CACHE_DIR") or systemd
    if not base:
        base = os.path.join(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "kzconsumer")
    folder = Path(base) / f"kernels-{hashlib.sha256(source).hexdigest()[:12]}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(f"{folder} is not writable")
    return folder
