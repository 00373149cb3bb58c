"""`kzconsumer --config FILE` or `kzconsumer run FILE`: one member, until a signal or the end of a run."""

from __future__ import annotations

import argparse
import os
import sys
import threading
from contextlib import nullcontext
from typing import TYPE_CHECKING

from kzconsumer.cli.configuration import add_configuration, layers_given

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    from kzconsumer.settings.settings import Settings
    from kzconsumer.sinks.interface import Sink


# Seconds for a thread that is about to end.
LAST_WAIT = 1.0


def add_arguments(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
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
    from kzconsumer.cli.checks import checked
    from kzconsumer.cli.progress import progress
    from kzconsumer.logs.setup import configure
    from kzconsumer.service.start import run as consume
    from kzconsumer.sinks.configured import check_sink

    def load() -> Settings:
        return checked(layers_given(arguments), check_sink, arguments.name)

    layers = layers_given(arguments)
    settings = checked(layers, _look, arguments.name)
    with layers.named():
        configure(settings.log.level, settings.log.format)
        bar = settings.subscription.stop_at is not None and sys.stderr.isatty()
        with progress("to the end of the run") if bar else nullcontext() as show:
            status = consume(settings, load, show)
    return _ended(status)


def _look(settings: Settings) -> Sink:
    """As `check-config`, but a SinkError is left to the start of the sink, which reports it."""
    from kzconsumer.errors import SinkError
    from kzconsumer.sinks.configured import check_sink, look_at_sink

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
