"""`kzconsumer topics list | describe`: topics as ZooKeeper has them; the rest of `topics` is in its siblings.

Owns no state, changes nothing, asks no broker. Standard output is the answer, tables of 80 columns or JSON with the
fields of `zookeeper.cluster_description`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from kzconsumer_tools.commands import topics_change, topics_config
from kzconsumer_tools.commands.cluster_option import add_target, target

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    from kzconsumer_tools.cluster.description import TopicDescription


def add_arguments(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    topics = subparsers.add_parser("topics", help="list, describe, reassign, delete and configure topics")
    actions = topics.add_subparsers(dest="action", required=True, metavar="ACTION")
    listing = actions.add_parser(
        "list",
        help="every topic: partitions, replicas, what is not in order",
        description="Show every topic, how many of its partitions have no leader or lack replicas in sync, and its own "
        "settings. Nothing is changed, and no broker is asked.",
    )
    describing = actions.add_parser(
        "describe",
        help="leader, replicas and replicas in sync of each partition",
        description="Show each partition's leader, epoch, replicas and replicas in sync, and the topic's own settings, "
        "as the controller wrote them last. Nothing is changed, and no broker is asked.",
    )
    describing.add_argument("topics", metavar="TOPIC", nargs="+")
    for action, run in ((listing, run_list), (describing, run_describe)):
        add_target(action)
        action.set_defaults(run=run)
    topics_change.add_actions(actions)
    topics_config.add_actions(actions)


def run_list(arguments: argparse.Namespace) -> int:
    from kzconsumer_tools.tables.cluster import topics_table

    return _show(arguments, None, topics_table)


def run_describe(arguments: argparse.Namespace) -> int:
    from kzconsumer_tools.tables.cluster import describe_table

    return _show(arguments, arguments.topics, describe_table)


def _show(
    arguments: argparse.Namespace, names: Sequence[str] | None, table: Callable[[Sequence[TopicDescription]], str]
) -> int:
    at = target(arguments)

    import anyio
    import msgspec

    from kzconsumer.logs import setup
    from kzconsumer_tools.cluster.reader import read_topics

    setup.for_one_answer()
    found = anyio.run(read_topics, at.zookeeper, names)
    print(msgspec.json.encode(found).decode() if arguments.output == "json" else table(found))
    return 0
