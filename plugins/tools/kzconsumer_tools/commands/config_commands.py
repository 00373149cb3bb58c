"""`kzconsumer config import`: translate a configuration of the original consumer; and `kzconsumer context`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Final

import msgspec

from kzconsumer.settings.value_readers import read_name
from kzconsumer_tools.commands.output_and_options import add_output, read_file, show
from kzconsumer_tools.original_config import Imported, read
from kzconsumer_tools.tables.text import columns

if TYPE_CHECKING:
    from argparse import _SubParsersAction
    from collections.abc import Sequence


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


def add_config(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
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


# `kzconsumer context list | use | set | delete`: named clusters, for commands that are given none.


class ListedContext(msgspec.Struct, frozen=True):
    name: str
    current: bool
    zookeeper: str | None
    """None if the file cannot be read."""
    file: str


def add_context(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    context = subparsers.add_parser("context", help="name clusters, and choose the one that commands use")
    actions = context.add_subparsers(dest="action", required=True, metavar="ACTION")
    listing = actions.add_parser("list", help="every context; * marks the current one", examples=("", "-o csv"))
    add_output(listing)
    listing.set_defaults(run=run_list)
    using = actions.add_parser(
        "use",
        help="make a context the current one",
        description="Make a context the current one: commands use its cluster unless --zookeeper, --config, --context"
        " or KZCONSUMER__ZOOKEEPER__CONNECT names another.",
        examples=("prod",),
    )
    setting = actions.add_parser(
        "set",
        help="create a context, or change its settings",
        description="Create a context, or change its settings: those of [zookeeper] and [brokers] in a group's file."
        " The first context becomes the current one.",
        examples=(
            "prod zookeeper.connect=zk1:2181,zk2:2181",
            "prod brokers.security_protocol=SSL brokers.tls.ca=/etc/kafka/ca.pem",
        ),
    )
    deleting = actions.add_parser("delete", help="forget a context", examples=("prod",))
    for action, run in ((using, run_use), (setting, run_set), (deleting, run_delete)):
        action.add_argument("name", metavar="CONTEXT", type=_name, help="its name")
        action.set_defaults(run=run)
    setting.add_argument(
        "settings",
        metavar="TABLE.KEY=VALUE",
        nargs="+",
        help="of [zookeeper] or [brokers]; the value is TOML, or else text",
    )


def run_list(arguments: argparse.Namespace) -> int:
    from kzconsumer.errors import ConfigError
    from kzconsumer.settings.settings import layers_of
    from kzconsumer_tools import contexts

    found = []
    for name in contexts.names():
        file = contexts.file_of(name)
        try:
            connect = contexts.cluster_settings(layers_of(file, environment={})).zookeeper.connect
        except ConfigError:
            connect = None
        found.append(ListedContext(name, name == contexts.current(), connect, str(file)))
    return show(arguments, found, _table)


def run_use(arguments: argparse.Namespace) -> int:
    from kzconsumer_tools import contexts

    contexts.use(arguments.name)
    print(f"the current context is {arguments.name}")
    return 0


def run_set(arguments: argparse.Namespace) -> int:
    from kzconsumer_tools import contexts

    first = contexts.current() is None
    print(f"wrote {contexts.change(arguments.name, arguments.settings)}")
    if first:
        contexts.use(arguments.name)
        print(f"the current context is {arguments.name}")
    return 0


def run_delete(arguments: argparse.Namespace) -> int:
    from kzconsumer_tools import contexts

    left = contexts.delete(arguments.name)
    print(f"deleted {arguments.name}; there is no current context" if left is None else f"deleted {arguments.name}")
    return 0


def _table(found: Sequence[ListedContext]) -> str:
    if not found:
        return "There are no contexts; `kzconsumer context set NAME zookeeper.connect=CONNECT` creates one."
    rows = [("", "NAME", "ZOOKEEPER")]
    rows += [("*" if each.current else "", each.name, each.zookeeper or f"invalid: {each.file}") for each in found]
    return "\n".join(columns(rows, right=()))


def _name(text: str) -> str:
    try:
        return read_name(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} {error}") from None
