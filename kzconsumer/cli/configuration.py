"""The arguments that name a group's configuration, FILE, `--config` and `--set`, and what they stand for."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kzconsumer.settings.layers import Layers
    from kzconsumer.settings.settings import Settings


def add_configuration(parser: argparse.ArgumentParser) -> None:
    """FILE or `--config FILE`, and `--set`."""
    file = parser.add_mutually_exclusive_group()
    file.add_argument("config", metavar="FILE", nargs="?", default=argparse.SUPPRESS, help="the group's TOML file")
    file.add_argument("--config", metavar="FILE", default=argparse.SUPPRESS, help="the same")
    add_set(parser, "flags_of_verb")
    parser.set_defaults(misused=parser.error)


def add_config(parser: argparse.ArgumentParser, description: str = "the group's TOML file") -> None:
    """Let a command's parser accept `--config FILE` and `--set`, which are always accepted before the verb."""
    parser.add_argument("--config", metavar="FILE", default=argparse.SUPPRESS, help=description)
    add_set(parser, "flags_of_verb")
    parser.set_defaults(misused=parser.error)


def add_set(parser: argparse.ArgumentParser, into: str) -> None:
    """`--set`, before or after the verb; each has a list of its own, since argparse would drop one."""
    parser.add_argument(
        "--set",
        metavar="TABLE.KEY=VALUE",
        action="append",
        dest=into,
        default=[],
        help="overrides files and environment; the value is TOML, or else text; may be repeated",
    )


def load_settings(arguments: argparse.Namespace) -> Settings:
    """The settings that the command line names: `--config FILE`, its drop-ins, the environment and every `--set`.

    Raises ConfigError; exits with a usage message if no file is given.
    """
    from kzconsumer.settings.settings import Settings

    return Settings.of(layers_given(arguments))


def layers_given(arguments: argparse.Namespace) -> Layers:
    """Raises ConfigError; exits with a usage message if no file is given."""
    from kzconsumer.settings.settings import layers_of

    if arguments.config is None:
        arguments.misused("no configuration file given; give --config FILE")
    return layers_of(arguments.config, flags_given(arguments))


def flags_given(arguments: argparse.Namespace) -> list[str]:
    return [*arguments.flags, *arguments.flags_of_verb]
