"""The code whose bugs matter, by room: what decides about ownership, offsets, records, destinations and figures."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.audit import c_operators, operators
from tests.audit.operators import Mutation

_PACKAGES: Final = (
    *("group", "offsets", "registry", "zookeeper", "brokers", "fetcher", "streams", "records", "lag"),
    *("sinks", "settings", "security", "service", "status"),
)
_MODULES: Final = (
    *("assignors", "connecting", "consumer", "durable_files", "end_offsets", "member", "own_files"),
    *("rejected", "resolver", "runs", "sessions", "threads"),
)
MEMBER: Final = (*_PACKAGES, *_MODULES)
DECODER: Final = "decoder in C"
_SPARK: Final = ("ranges", "destinations", "executors", "source", "columns")
_TOOLS: Final = ("groups", "offsets", "cluster", "exporter")
_TOOLS_MODULES: Final = ("node_changes", "original_config", "proof", "replay")
FOLDERS: Final[Mapping[str, str]] = {
    **{room: f"kzconsumer/{room}" for room in _PACKAGES},
    **{room: f"kzconsumer/{room}.py" for room in _MODULES},
    "sticky": "plugins/sticky/kzconsumer_sticky",
    "files": "plugins/files/kzconsumer_files",
    **{f"spark {room}": f"plugins/spark/kzconsumer_spark/{room}" for room in _SPARK},
    **{f"tools {room}": f"plugins/tools/kzconsumer_tools/{room}" for room in _TOOLS},
    **{f"tools {room}": f"plugins/tools/kzconsumer_tools/{room}.py" for room in _TOOLS_MODULES},
}
"""Where each room is: a package, or one module."""
OUTSIDE: Final = (
    *("cli", "logs", "testing", "clock", "counters", "dead_letter_format", "display", "errors", "file_names"),
    *("installation", "model", "plugins", "version"),
)
"""Modules and packages of `kzconsumer` that decide nothing of this: they show, name or hold something."""
NATIVE: Final = "kzconsumer/records/native"
_PYTHONS: Final = ("python_api.h", "stable_abi.h")
"""Headers that say what Python has. Those of the decoder have functions and the sizes of all formats."""


def rooms() -> list[str]:
    return [*FOLDERS, DECODER]


def bugs_of(root: Path, room: str) -> list[Mutation]:
    """Every bug that the operators can make there."""
    if room == DECODER:
        files, pattern, make = root / NATIVE, "*.[ch]", c_operators.mutations
    else:
        files, pattern, make = root / FOLDERS[room], "*.py", operators.mutations
    found = [files] if files.is_file() else sorted(each for each in files.rglob(pattern) if each.name not in _PYTHONS)
    return [bug for file in found for bug in make(str(file.relative_to(root)), file.read_text())]
