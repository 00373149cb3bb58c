"""`kzconsumer topics list | describe`: topics as ZooKeeper has them, or the brokers of a cluster that has left it.

Other actions: `topics_change`, `topics_config`.

JSON has the fields of `cluster.description.TopicDescription`.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import TYPE_CHECKING

from kzconsumer_tools.commands import topics_change, topics_config
from kzconsumer_tools.commands.answer import ask, show
from kzconsumer_tools.commands.cluster_option import add_cluster_option, cluster_option, read_topics
from kzconsumer_tools.tables.cluster import describe_table, topics_table

if TYPE_CHECKING:
    from argparse import _SubParsersAction


def add_arguments(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    topics = subparsers.add_parser("topics", help="list, describe, reassign, delete and configure topics")
    actions = topics.add_subparsers(dest="action", required=True, metavar="ACTION")
    listing = actions.add_parser(
        "list",
        help="every topic: partitions, replicas, problems",
        description="Show every topic, the numbers of its partitions without leader and with replicas out of sync, and "
        "its own settings. Changes nothing.",
        examples=("", "--context prod -o csv"),
    )
    describing = actions.add_parser(
        "describe",
        help="leader, replicas and in-sync replicas of each partition",
        description="Show each partition's leader, epoch, replicas and in-sync replicas, and the topic's own settings, "
        "as last written by the controller. Changes nothing.",
        examples=("orders", "orders payments -o json"),
    )
    describing.add_argument("topics", metavar="TOPIC", nargs="+", help="to be shown")
    for action, run in ((listing, run_list), (describing, run_describe)):
        add_cluster_option(action)
        action.set_defaults(run=run)
    topics_change.add_actions(actions)
    topics_config.add_actions(actions)


def run_list(arguments: argparse.Namespace) -> int:
    at = cluster_option(arguments)
    return show(arguments, ask(read_topics, at, None), topics_table, wide=partial(topics_table, wide=True))


def run_describe(arguments: argparse.Namespace) -> int:
    at = cluster_option(arguments)
    found = ask(read_topics, at, arguments.topics)
    return show(arguments, found, describe_table, wide=partial(describe_table, wide=True))
