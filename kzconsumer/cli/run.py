"""`kzconsumer --config FILE` or `kzconsumer run FILE`: one member, until a signal or the end of a run."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from argparse import _SubParsersAction


def add_arguments(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "run",
        help="consume as a member of the group (the default)",
        description="Join the group and hand its records to the sink until SIGTERM or SIGINT; a second one means now.",
    )
    file = parser.add_mutually_exclusive_group()
    file.add_argument("file", metavar="FILE", nargs="?", help="the group's TOML file")
    file.add_argument("--config", metavar="FILE", default=argparse.SUPPRESS, help="the same")
    parser.add_argument(
        "--run",
        dest="name",
        metavar="NAME",
        help="with stop_at: the run that this start belongs to; the same name goes on with it, another begins anew",
    )
    parser.set_defaults(run=run, misused=parser.error)


def run(arguments: argparse.Namespace) -> int:
    path = arguments.file or arguments.config
    if path is None:
        arguments.misused("no configuration file given")
    from kzconsumer.config import Settings

    settings = Settings.load(path)
    settings.require_daemon()
    if arguments.name is not None:
        settings = settings.in_run(arguments.name)

    from kzconsumer.cli.run_progress import run_progress
    from kzconsumer.daemon import run as consume
    from kzconsumer.log import configure

    configure(settings.log.level, settings.log.format)
    with run_progress(settings.subscription.stop_at is not None) as show:
        return consume(settings, show)
