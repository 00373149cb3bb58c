"""Builds the sink that the settings name, without entering it."""

from __future__ import annotations

from typing import cast

from kzconsumer.errors import KzConsumerError, PluginError
from kzconsumer.plugins import SINKS, load_chosen
from kzconsumer.settings.settings import Settings
from kzconsumer.settings.tables import faults_in
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

    Raises ConfigError (lines that begin with the file) for faults of the settings, PluginError for those of the plugin.
    """
    chosen = settings.require_sink()
    build = cast(SinkPlugin, load_chosen(SINKS, chosen.plugin, f"{settings.source}: [sink] plugin"))
    try:
        with faults_in(settings.source):
            return build(chosen.options, context)
    except KzConsumerError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise PluginError(f'{SINKS} plugin "{chosen.plugin}" failed to check its options: {reason}') from error
