"""The sink that the settings name, without entering it: built, checked, and what it can do beyond `write`.

The only place that looks for the optional parts of a sink.
"""

from __future__ import annotations

import difflib
import inspect
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from typing import Any, cast, get_args

import msgspec

from kzconsumer.errors import PLUGIN_FAULTS, KzConsumerError, PluginError, SinkError, raised
from kzconsumer.model import RangeIdentity, Wants
from kzconsumer.offsets.start_rules import Destination
from kzconsumer.plugins import SINKS, described, is_async, load_chosen, misfit
from kzconsumer.settings.settings import Settings
from kzconsumer.settings.table_reader import faults_in
from kzconsumer.sinks.interface import (
    Accountable,
    Batch,
    Checkable,
    Previewing,
    Pulling,
    RangeData,
    SettingAside,
    Sink,
    SinkContext,
    SinkPlugin,
    Trying,
)

# Why an object cannot be used as a sink, found before it is entered.

_ENTERING: dict[str, tuple[str, ...]] = {"__aenter__": (), "__aexit__": ("kind", "error", "trace")}
_OPTIONAL = {"has": ("ranges",), "set_aside": ("part", "records"), "asked": ()}
# Of a replayable sink alone.
_REPLAYING = ("has", "set_aside", "remembers")
KNOWN = frozenset(
    {
        *("write", "wants", "start_limit", "batch_bytes", "due_records", "last_batch", "status", "destination"),
        *("fingerprint", "has", "remembers", "set_aside", "asked", "trial", "range_lost", "check", "preview"),
        *("holdings", "elsewhere"),
    }
)
"""All that a sink can have."""
_MEANT = {"replayable": "fingerprint", **{name: name for name in KNOWN}}
_NEAR = 0.88  # `want` and `wants`, `finger_print`: not `state` and `status`, which are two words


def sink_faults(sink: object) -> list[str]:
    """Each begins with the name of the sink's class and says what to change. Empty for a usable sink."""
    kind = type(sink).__name__
    return [f"{kind} {fault}" for fault in (*_shape(sink), *_contradictions(sink))]


def misspelt(sink: object) -> dict[str, str]:
    """The sink's public attributes that have no effect, each with what was probably meant.

    They may be the sink's own, so they are no faults.
    """
    others = (name for name in dir(sink) if not name.startswith("_") and name not in KNOWN)
    near = {name: difflib.get_close_matches(name.casefold(), _MEANT, n=1, cutoff=_NEAR) for name in others}
    return {name: _MEANT[found[0]] for name, found in near.items() if found}


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
    elif fingerprint and getattr(sink, "has", None) is None:
        yield f'has a "fingerprint" and no "has"; define "{_definition("has", _OPTIONAL["has"])}"'


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


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """Found once for a sink. None stands for what the sink does not have."""

    wants: Wants
    start_limit: float
    """Seconds that entering may take; 0 without the attribute."""
    batch_bytes: int
    """Bytes at which a batch is full, whatever the settings allow; no limit without the attribute."""
    due_records: int
    """Records with which a batch is due before it is full; no limit without the attribute."""
    last_batch: Callable[[], Mapping[str, object]]
    """What the sink adds to the log line of the batch just written."""
    status: Callable[[], Mapping[str, object]]
    """What the sink shows on the status pages."""
    destination: Destination | None
    """The sink itself, if it is replayable."""
    described: Callable[[], str]
    """The destination's name in errors; may be empty."""
    remembers: Callable[[], bool]
    """See `Destination.remembers`."""
    asked: Callable[[], Awaitable[None]] | None
    set_aside: Callable[[RangeIdentity, int], Awaitable[bool]] | None
    trial: Callable[[Batch], Awaitable[None]] | None
    range_lost: Callable[[RangeData], None]
    """Called during `write` when a range of its batch is lost: another member may write it."""
    check: Callable[[], None] | None
    previews: Previewing | None
    accounts: Accountable | None


def capabilities(sink: Sink) -> Capabilities:
    """Raises PluginError if the object is not a sink, or if what it declares contradicts itself."""
    if faults := sink_faults(sink):
        raise PluginError("; ".join(faults))
    replayable = bool(getattr(sink, "fingerprint", ""))
    return Capabilities(
        wants=getattr(sink, "wants", "columns"),
        start_limit=getattr(sink, "start_limit", 0.0),
        batch_bytes=getattr(sink, "batch_bytes", sys.maxsize),
        due_records=getattr(sink, "due_records", sys.maxsize),
        last_batch=lambda: getattr(sink, "last_batch", {}),
        status=lambda: getattr(sink, "status", {}),
        destination=cast(Destination, sink) if replayable else None,
        described=lambda: getattr(sink, "destination", ""),
        remembers=lambda: bool(getattr(sink, "remembers", False)),
        asked=sink.asked if isinstance(sink, Pulling) else None,
        set_aside=sink.set_aside if isinstance(sink, SettingAside) else None,
        trial=sink.trial if replayable and isinstance(sink, Trying) else None,
        range_lost=getattr(sink, "range_lost", lambda part: None),
        check=sink.check if isinstance(sink, Checkable) else None,
        previews=sink if isinstance(sink, Previewing) else None,
        accounts=sink if isinstance(sink, Accountable) else None,
    )


def check_sink(settings: Settings) -> Sink:
    """Build the sink only to check its options; no server is asked. Raises as `configured_sink`."""
    context = SinkContext(group=settings.group.id, member="", cluster="", safe_until=lambda: 0.0)
    return configured_sink(settings, context)


def look_at_sink(settings: Settings) -> Sink:
    """As `check_sink`, and calls `check` of a sink that has it. Raises also SinkError."""
    sink = check_sink(settings)
    if (check := capabilities(sink).check) is not None:
        with faults_in(settings.source):
            check()
    return sink


def configured_sink(settings: Settings, context: SinkContext) -> Sink:
    """Load the sink's plugin and let it check its options.

    Raises ConfigError (lines that begin with the file) for faults of the settings, PluginError for faults of the
    plugin, such as a sink that has no `write`.
    """
    chosen = settings.require_sink()
    build = cast(SinkPlugin, load_chosen(SINKS, chosen.plugin, f"{settings.source}: [sink] plugin"))
    plugin = described(SINKS, chosen.plugin)
    _require_builder(plugin, build)
    try:
        with faults_in(settings.source):
            sink = build(chosen.options, msgspec.structs.replace(context, settings=settings))
    except KzConsumerError:
        raise
    except PLUGIN_FAULTS as error:
        raise PluginError(f"{plugin} failed to check its options: {raised(error)}") from error
    try:
        capabilities(sink)
    except PluginError as error:
        raise PluginError(f"{plugin}: {error}") from None
    return sink


def _require_builder(plugin: str, build: SinkPlugin) -> None:
    if not callable(build):
        reason: str | None = (
            f"is an object of type {type(build).__name__}, not a class or function (options, context) -> sink"
        )
    elif is_async(build):
        reason = "is async; it must return the sink, not a coroutine"
    else:
        reason = misfit(build, "options", "context")
    if reason is not None:
        raise PluginError(f"{plugin} {reason}")


def require_written(writer: str, returned: object) -> None:
    """Raises SinkError for what no write returns that has written everything.

    False, or a coroutine that nobody awaits, would otherwise count as success, and the offsets would be committed.
    """
    if returned is False or isinstance(returned, Awaitable):
        shown = "False" if returned is False else f"a {type(returned).__name__}"
        if isinstance(returned, Coroutine):
            returned.close()
        raise SinkError(f"{writer} returned {shown}; it returns None once all is written, and raises otherwise")
