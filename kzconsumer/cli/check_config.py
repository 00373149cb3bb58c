"""`kzconsumer check-config FILE`: lists every fault that can be found without a server."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from kzconsumer.cli.configuration import add_configuration, layers_given

if TYPE_CHECKING:
    from argparse import _SubParsersAction


def add_arguments(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
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
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from kzconsumer.cli.checks import checked
    from kzconsumer.sinks.configured import look_at_sink

    layers = layers_given(arguments)
    settings = checked(layers, look_at_sink)
    if not arguments.effective:
        print(f"{layers.source}: no fault found")
        return 0

    import msgspec

    from kzconsumer.settings.effective import as_toml, effective

    values = effective(settings, layers)
    print(msgspec.json.encode(values).decode() if arguments.output == "json" else "\n".join(as_toml(values)))
    return 0
