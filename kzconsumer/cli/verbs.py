"""The core's verbs: `kzconsumer --config FILE` or `kzconsumer run FILE`, `check-config FILE`, `plugins`."""

from __future__ import annotations

import argparse
import os
import sys
import threading
from contextlib import nullcontext
from typing import TYPE_CHECKING

from kzconsumer.cli.arguments import add_configuration, layers_given

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    from kzconsumer.settings.settings import Settings
    from kzconsumer.sinks.interface import Sink


# Seconds for a thread that is about to end.
LAST_WAIT = 1.0


def add_run(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "run",
        help="consume as a member of the group",
        description="Join the group and write its records to the sink until SIGTERM or SIGINT; a second signal stops "
        "at once. SIGHUP reads the configuration again.",
        examples=("orders.toml", "orders.toml --set log.level=debug", "nightly.toml --run 2026-01-31"),
    )
    add_configuration(parser)
    parser.add_argument(
        "--run",
        dest="name",
        metavar="NAME",
        help="with stop_at: name of the run; the same name continues it, another one starts a new run",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from kzconsumer.cli.arguments import progress
    from kzconsumer.cli.checks import checked
    from kzconsumer.logs.setup import configure
    from kzconsumer.service.daemon import run as consume
    from kzconsumer.service.stop_and_reload import noted_reloads
    from kzconsumer.sinks.capabilities import check_sink

    def load() -> Settings:
        return checked(layers_given(arguments), check_sink, arguments.name)

    with noted_reloads() as early:  # from before the settings are read
        layers = layers_given(arguments)
        settings = checked(layers, _look, arguments.name)
        with layers.named():
            configure(settings.log.level, settings.log.format)
            bar = settings.subscription.stop_at is not None and sys.stderr.isatty()
            with progress("to the end of the run") if bar else nullcontext() as show:
                status = consume(settings, load, show, early)
    return _ended(status)


def _look(settings: Settings) -> Sink:
    """As `check-config`, but a SinkError is left to the start of the sink, which reports it."""
    from kzconsumer.errors import SinkError
    from kzconsumer.sinks.capabilities import check_sink, look_at_sink

    try:
        return look_at_sink(settings)
    except SinkError:
        return check_sink(settings)


def _ended(status: int) -> int:
    """End the process although a thread cannot be cancelled, such as a write of a sink."""
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join(LAST_WAIT)
            if thread.is_alive():
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(status)
    return status


# `check-config` lists every fault that can be found without a server.


def add_check_config(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "check-config",
        help="check a configuration file and the sink's options",
        description="Check a daemon's configuration: the file with its drop-ins, the environment and flags, the "
        "plugins named there, the sink's own options and, if the sink supports it, whether its destination is "
        "writable. Reads the keys and passwords that the configuration names. Changes nothing and contacts no server. "
        "Exit status 78 if there is a fault.",
        examples=("orders.toml", "orders.toml --effective"),
    )
    add_configuration(parser)
    parser.add_argument("--effective", action="store_true", help="print every key with its value and origin")
    parser.add_argument(
        "-o", "--output", choices=("toml", "json"), default="toml", help="of --effective; default: toml"
    )
    parser.set_defaults(run=check_config)


def check_config(arguments: argparse.Namespace) -> int:
    from kzconsumer.cli.checks import checked
    from kzconsumer.sinks.capabilities import look_at_sink

    layers = layers_given(arguments)
    settings = checked(layers, look_at_sink)
    if not arguments.effective:
        print(f"{layers.source}: no fault found")
        return 0

    import msgspec

    from kzconsumer.settings.settings import as_toml, effective

    values = effective(settings, layers)
    print(msgspec.json.encode(values).decode() if arguments.output == "json" else "\n".join(as_toml(values)))
    return 0


# `plugins` lists what is installed, without importing it.


def add_plugins(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "plugins",
        help="list installed assignors, sinks and commands",
        description="List installed assignors, sinks and commands: kind, name, object; by the distribution of each.",
        examples=("",),
    )
    parser.set_defaults(run=show_plugins)


def show_plugins(arguments: argparse.Namespace) -> int:
    from kzconsumer.plugins import ASSIGNORS, COMMANDS, SINKS, kind, list_plugins

    found = [plugin for group in (ASSIGNORS, SINKS, COMMANDS) for plugin in list_plugins(group)]
    for distribution in sorted({plugin.distribution for plugin in found}):
        print(distribution)
        brought = [plugin for plugin in found if plugin.distribution == distribution]
        width = max(len(plugin.name) for plugin in brought)
        for plugin in brought:
            print(f"  {kind(plugin.group):<8}  {plugin.name:<{width}}  {plugin.value}")
    return 0
