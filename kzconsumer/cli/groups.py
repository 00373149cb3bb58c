"""`kzconsumer groups list` and `groups describe`: the groups in ZooKeeper as they are, originals' and ours.

Owns no state, changes nothing, asks no broker. Standard output is the answer, tables of 80 columns or JSON with the
fields of `group.group_description`.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    from kzconsumer.config import ZooKeeperSettings


def add_arguments(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    groups = subparsers.add_parser("groups", help="list groups, and describe one: members, owners, stored offsets")
    actions = groups.add_subparsers(dest="action", required=True, metavar="ACTION")
    listing = actions.add_parser(
        "list",
        help="every group: its members, its topics, the partitions they own",
        description="Show every group there is, those without members too. Nothing is changed.",
    )
    describing = actions.add_parser(
        "describe",
        help="one group: members, owners, stored offsets, and what is wrong",
        description="Show the members, partitions, owners and stored offsets of a group, and every node that is not as "
        "it should be. Nothing is changed, and no broker is asked.",
    )
    describing.add_argument("group", metavar="GROUP", nargs="?", type=_group, help="default: the one of --config")
    for action, run in ((listing, run_list), (describing, run_describe)):
        action.add_argument("--zookeeper", metavar="CONNECT", type=_connect, help="such as zk1:2181,zk2:2181/kafka")
        action.add_argument("--config", metavar="FILE", default=argparse.SUPPRESS, help="or a group's TOML file")
        action.add_argument("-o", "--output", choices=("table", "json"), default="table", help="default: table")
        action.set_defaults(run=run, misused=action.error)


def run_list(arguments: argparse.Namespace) -> int:
    where, _ = _where(arguments)

    import anyio
    import msgspec

    from kzconsumer import log
    from kzconsumer.cli.groups_table import list_table
    from kzconsumer.group.group_reader import read_summaries

    log.configure("warning", "auto")
    groups = anyio.run(read_summaries, where)
    print(msgspec.json.encode(groups).decode() if arguments.output == "json" else list_table(groups))
    return 0


def run_describe(arguments: argparse.Namespace) -> int:
    where, configured = _where(arguments)
    group: str = arguments.group or configured or arguments.misused("no group named; give GROUP, or --config FILE")

    import anyio
    import msgspec

    from kzconsumer import log
    from kzconsumer.cli.groups_table import describe_table
    from kzconsumer.group.group_description import describe
    from kzconsumer.group.group_reader import read_nodes

    log.configure("warning", "auto")
    found = describe(anyio.run(read_nodes, where, group))
    print(msgspec.json.encode(found).decode() if arguments.output == "json" else describe_table(found))
    return 0


def _where(arguments: argparse.Namespace) -> tuple[ZooKeeperSettings, str | None]:
    """Which ZooKeeper, and the group of the file if there is one."""
    from kzconsumer.config import Settings, ZooKeeperSettings

    if arguments.zookeeper is not None and arguments.config is not None:
        arguments.misused("--zookeeper and --config both name a ZooKeeper; give one of them")
    if arguments.zookeeper is not None:
        return ZooKeeperSettings(connect=arguments.zookeeper), None
    if arguments.config is None:
        arguments.misused("no ZooKeeper named; give --zookeeper CONNECT, or --config FILE")
    settings = Settings.load(arguments.config)
    return settings.zookeeper, settings.group.id


def _connect(text: str) -> str:
    from kzconsumer.config import read_connect

    try:
        return read_connect(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} {error}") from None


def _group(text: str) -> str:
    if not text or "/" in text:
        raise argparse.ArgumentTypeError(f"{text!r} is not the name of a group")
    return text
