"""`kzconsumer config import`: translate a configuration of the original consumer into a group's file."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Final

import msgspec

from kzconsumer_tools.commands.execute_option import read_file
from kzconsumer_tools.original_config import Imported, read

if TYPE_CHECKING:
    from argparse import _SubParsersAction

_WIDTH: Final = 120


def as_toml(imported: Imported, source: str) -> Iterator[str]:
    """Lines of a group's file, with the original key above each setting."""
    yield f"# Translated from {json.dumps(source)} by `kzconsumer config import`; original keys are above each setting."
    yield "# Check it with: kzconsumer check-config FILE"
    by_setting = {note.setting: note for note in imported.notes if note.setting is not None}
    for table, values in imported.settings.items():
        yield ""
        yield f"[{table}]"
        for name, value in values.items():
            note = by_setting[f"{table}.{name}"]
            mark = "" if note.kind == "same" else f"{note.kind.upper()} "
            explanation = f": {note.explanation}" if note.explanation else ""
            yield from _comment(f"{mark}{note.key}={note.value}{'' if note.given else ' (default)'}{explanation}")
            yield f"{name} = {json.dumps(value, ensure_ascii=False)}"
        if table == "group":
            yield ""
            yield "# Topics and the sink were set in the application's code: see group.reference.toml."
            yield "#[subscription]"
            yield "#topics = { orders = 1 }"
    left = [note for note in imported.notes if note.setting is None]
    if left:
        yield ""
        yield "# Without counterpart:"
        for note in left:
            mark = "UNSAFE " if note.kind == "unsafe" else ""
            yield from _comment(
                f"{mark}{note.key}={note.value}{'' if note.given else ' (default)'}: {note.explanation}", "  "
            )


def _comment(text: str, indent: str = "") -> list[str]:
    text = "".join(each if each.isprintable() else " " for each in text)
    first = f"# {indent}"
    return wrap(text, _WIDTH, initial_indent=first, subsequent_indent=f"{first}  ", break_long_words=False)


def add_arguments(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    config = subparsers.add_parser(
        "config", help="translate a configuration of the original consumer into a group's file"
    )
    actions = config.add_subparsers(dest="action", required=True, metavar="ACTION")
    importing = actions.add_parser(
        "import",
        help="translate a consumer.properties",
        description="Translate a consumer.properties of Kafka's ZooKeeper consumer (0.8.2 to 1.1) into a group's file "
        "on standard output. Keys that changed their meaning, have no counterpart or are unsafe are reported on "
        "standard error and as comments in the file. Exit status 78 if the original would not start with it.",
        examples=("consumer.properties > orders.toml", "consumer.properties -o json"),
    )
    importing.add_argument("file", metavar="FILE", type=Path, help="a consumer.properties")
    importing.add_argument("-o", "--output", choices=("toml", "json"), default="toml", help="default: toml")
    importing.set_defaults(run=run_import)


def run_import(arguments: argparse.Namespace) -> int:
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
