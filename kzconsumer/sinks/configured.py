"""Builds the sink that the settings name, without entering it."""

from __future__ import annotations

from typing import cast

import msgspec

from kzconsumer.errors import ConfigError, KzConsumerError, PluginError, raised
from kzconsumer.plugins import SINKS, described, load_chosen
from kzconsumer.settings.settings import Settings
from kzconsumer.settings.tables import faults_in
from kzconsumer.sinks.callables import is_async, misfit
from kzconsumer.sinks.capabilities import capabilities
from kzconsumer.sinks.interface import Sink, SinkContext, SinkPlugin


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

    Raises ConfigError (lines that begin with the file) for faults of the settings, also for those that need the records
    of a sink that fetches for itself; PluginError for faults of the plugin, such as a sink that has no `write`.
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
    except Exception as error:
        raise PluginError(f"{plugin} failed to check its options: {raised(error)}") from error
    try:
        can = capabilities(sink)
    except PluginError as error:
        raise PluginError(f"{plugin}: {error}") from None
    if can.wants == "ranges":
        _require_no_records(settings)
    return sink


def _require_no_records(settings: Settings) -> None:
    """Raises ConfigError for what the member does with records that it has fetched."""
    chosen = settings.require_sink()
    needing = {
        "[fetch] on_corrupt": settings.fetch.on_corrupt != "fail",
        "[fetch] rate_limit": settings.fetch.rate_limit is not None,
        "[sink] on_batch_failure": chosen.on_batch_failure != "stop",
    }
    why = f"needs records in the member, but the sink {chosen.plugin} fetches for itself"
    way_out = "remove it, or change [sink.options]"
    if faults := [f"{settings.source}: {key}: {why}: {way_out}" for key, is_set in needing.items() if is_set]:
        raise ConfigError(faults)


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
