"""`kzconsumer context list | use | set | delete`: named clusters, for commands that are given none."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

import msgspec

from kzconsumer.settings.values import read_name
from kzconsumer_tools.commands.answer import add_output, show
from kzconsumer_tools.tables.text import columns

if TYPE_CHECKING:
    from argparse import _SubParsersAction
    from collections.abc import Sequence


class ListedContext(msgspec.Struct, frozen=True):
    name: str
    current: bool
    zookeeper: str | None
    """None if the file cannot be read."""
    file: str


def add_arguments(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
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
