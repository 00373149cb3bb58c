"""`kzconsumer config import`: a configuration of the original consumer becomes a group's file. Owns no state."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from argparse import _SubParsersAction


def add_arguments(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    config = subparsers.add_parser("config", help="turn a configuration of the original consumer into a group's file")
    actions = config.add_subparsers(dest="action", required=True, metavar="ACTION")
    importing = actions.add_parser(
        "import",
        help="of consumer.properties",
        description="Turn a consumer.properties of Kafka's ZooKeeper consumer (0.8.2 to 1.1) into a group's file, on "
        "standard output. What means something else here, has no counterpart or is unsafe is told on standard error, "
        "and stands in the file as comments. Exit status 78 for what the original would not start with.",
    )
    importing.add_argument("file", metavar="FILE", type=Path)
    importing.add_argument("-o", "--output", choices=("toml", "json"), default="toml", help="default: toml")
    importing.set_defaults(run=run_import)


def run_import(arguments: argparse.Namespace) -> int:
    import sys

    import msgspec

    from kzconsumer.cli.acting import read_file
    from kzconsumer.original_config import as_toml, read

    source = str(arguments.file)
    imported = read(read_file(arguments.file), source)
    if arguments.output == "json":
        print(msgspec.json.encode(imported).decode())
        return 0
    print("\n".join(as_toml(imported, source)))
    for note in imported.notes:
        if note.kind != "same":
            print(f"{note.kind.replace('_', ' ')}: {note}", file=sys.stderr)
    return 0
