"""`kzconsumer --config FILE`: one member, until a signal ends it."""

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
    parser.add_argument("--config", metavar="FILE", default=argparse.SUPPRESS, help="the group's TOML file")
    parser.set_defaults(run=run, misused=parser.error)


def run(arguments: argparse.Namespace) -> int:
    if arguments.config is None:
        arguments.misused("no configuration file given; use --config FILE")
    from kzconsumer.config import Settings

    settings = Settings.load(arguments.config)
    settings.require_daemon()

    from kzconsumer.daemon import run as consume
    from kzconsumer.log import configure

    configure(settings.log.level, settings.log.format)
    return consume(settings)
