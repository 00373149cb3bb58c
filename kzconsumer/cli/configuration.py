"""A group's configuration on the command line: its file and flags as arguments.

Owns no state. Used by the verbs that run or check a member, and by those that take a group's file to look from outside.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kzconsumer.settings.layers import Layers


def add_configuration(parser: argparse.ArgumentParser) -> None:
    """FILE or `--config FILE`, and `--set`."""
    file = parser.add_mutually_exclusive_group()
    file.add_argument("config", metavar="FILE", nargs="?", default=argparse.SUPPRESS, help="the group's TOML file")
    file.add_argument("--config", metavar="FILE", default=argparse.SUPPRESS, help="the same")
    add_set(parser, "flags_of_verb")
    parser.set_defaults(misused=parser.error)


def add_config(parser: argparse.ArgumentParser, description: str = "the group's TOML file") -> None:
    """`--config FILE` and `--set`, for verbs whose other words are about something else."""
    parser.add_argument("--config", metavar="FILE", default=argparse.SUPPRESS, help=description)
    add_set(parser, "flags_of_verb")
    parser.set_defaults(misused=parser.error)


def add_set(parser: argparse.ArgumentParser, into: str) -> None:
    """`--set`, before the verb or behind it; the two do not share a list, since argparse would lose one."""
    parser.add_argument(
        "--set",
        metavar="TABLE.KEY=VALUE",
        action="append",
        dest=into,
        default=[],
        help="over what the files and the environment say; the value is TOML, or else text. May be repeated",
    )


def layers_given(arguments: argparse.Namespace) -> Layers:
    """Raises ConfigError; ends the program with a line on usage when there is no file."""
    from kzconsumer.settings.settings import layers_of

    if arguments.config is None:
        arguments.misused("no configuration file given; give --config FILE")
    return layers_of(arguments.config, flags_given(arguments))


def flags_given(arguments: argparse.Namespace) -> list[str]:
    """What `--set` says, before the verb and behind it."""
    return [*arguments.flags, *arguments.flags_of_verb]
