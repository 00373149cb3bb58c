"""Why an object cannot be used as a sink, found before it is entered."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any, get_args

from kzconsumer.model import Wants
from kzconsumer.sinks.callables import is_async, misfit

_ENTERING: dict[str, tuple[str, ...]] = {"__aenter__": (), "__aexit__": ("kind", "error", "trace")}
_OPTIONAL = {"has": ("ranges",), "set_aside": ("part", "records"), "prepare": ("batch",), "asked": ()}
# Of a replayable sink alone.
_REPLAYING = ("has", "set_aside", "remembers")


def sink_faults(sink: object) -> list[str]:
    """Each begins with the name of the sink's class and says what to change. Empty for a usable sink."""
    kind = type(sink).__name__
    return [f"{kind} {fault}" for fault in (*_shape(sink), *_contradictions(sink))]


def _shape(sink: object) -> Iterator[str]:
    yield from _method(sink, "write", ("batch",), required=True)
    for name, arguments in _ENTERING.items():
        if hasattr(type(sink), name):
            yield from _method(sink, name, arguments)
        else:  # `async with` looks at the class only
            yield f'has no "{name}"; define "{_definition(name, arguments)}"'
    for name, arguments in _OPTIONAL.items():
        yield from _method(sink, name, arguments)
    if is_async(getattr(sink, "check", None)):
        yield 'has an async "check", which would never run; define "def check(self)"'


def _method(sink: object, name: str, arguments: tuple[str, ...], *, required: bool = False) -> Iterator[str]:
    found = getattr(sink, name, None)
    if found is None:
        if required:
            yield f'has no "{name}"; define "{_definition(name, arguments)}"'
    elif not is_async(found):
        yield f'has a "{name}" that is not async; define "{_definition(name, arguments)}"'
    elif (reason := misfit(found, *arguments)) is not None:
        yield f'has a "{name}" that {reason}; define "{_definition(name, arguments)}"'


def _contradictions(sink: object) -> Iterator[str]:
    wants = getattr(sink, "wants", "columns")
    if wants not in get_args(Wants):
        yield f'wants "{wants}"; there is {", ".join(get_args(Wants))}'
    batch_bytes = getattr(sink, "batch_bytes", 1)
    if not isinstance(batch_bytes, int) or batch_bytes < 1:
        yield f'has a "batch_bytes" that is not a number of bytes: {batch_bytes!r}'
    due_records = getattr(sink, "due_records", 1)
    if not isinstance(due_records, int) or due_records < 1:
        yield f'has a "due_records" that is not a number of records: {due_records!r}'
    try:
        fingerprint = _fingerprint(sink)
    except Exception as error:
        yield f'has a "fingerprint" that cannot be read before the sink is entered: {type(error).__name__}: {error}'
        return
    if fingerprint is None:
        if declared := [name for name in _REPLAYING if _declares(sink, name) and getattr(sink, name)]:
            yield f'has "{declared[0]}" and no "fingerprint"; set that to a text, or to "" if it is not replayable'
    elif not isinstance(fingerprint, str):
        yield f'has a "fingerprint" that is not a text: {fingerprint!r}'
    elif fingerprint:
        if getattr(sink, "has", None) is None:
            yield f'has a "fingerprint" and no "has"; define "{_definition("has", _OPTIONAL["has"])}"'
        if wants == "raw":
            # The records of its ranges are not counted, so no plan can identify them.
            yield 'has a "fingerprint" and wants "raw": only a sink of columns can be replayable'


def _fingerprint(sink: Any) -> object:
    """None if there is none. Raises what its property raises."""
    try:
        return sink.fingerprint
    except AttributeError:
        if _declares(sink, "fingerprint"):
            raise
        return None


def _declares(sink: object, name: str) -> bool:
    return inspect.getattr_static(sink, name, None) is not None


def _definition(name: str, arguments: tuple[str, ...]) -> str:
    return f"async def {name}({', '.join(('self', *arguments))})"
