"""`kzconsumer groups list` and `groups describe`: the consumer groups in ZooKeeper, original members and ours.

JSON has the fields of `groups.description`.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import TYPE_CHECKING

from kzconsumer_tools.commands import groups_move, groups_plan, groups_repair
from kzconsumer_tools.commands.answer import ask, show
from kzconsumer_tools.commands.cluster_option import (
    ClusterOption,
    add_cluster_option,
    add_group,
    add_storage,
    cluster_option,
    required_group,
)
from kzconsumer_tools.groups.description import GroupDescription, describe
from kzconsumer_tools.groups.diagnosis import examined
from kzconsumer_tools.tables.groups import describe_table, list_table

if TYPE_CHECKING:
    from argparse import _SubParsersAction


def add_arguments(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    groups = subparsers.add_parser("groups", help="list, describe, plan, verify, repair, move and delete groups")
    actions = groups.add_subparsers(dest="action", required=True, metavar="ACTION")
    listing = actions.add_parser(
        "list",
        help="every group: its members, its topics, the partitions they own",
        description="List all groups, including those without members. Changes nothing.",
        examples=("", "--zookeeper zk1:2181,zk2:2181/kafka", "--context prod -o csv"),
    )
    describing = actions.add_parser(
        "describe",
        help="one group: members, owners, stored offsets, problems",
        description="Show the members, partitions, owners and stored offsets of a group, and every invalid node. "
        "Changes nothing. The verdict is that of `doctor`, after one look.",
        examples=("orders", "--config orders.toml", "orders --storage kafka -o json"),
    )
    add_group(describing)
    add_storage(describing)
    for action, run in ((listing, run_list), (describing, run_describe)):
        add_cluster_option(action)
        action.set_defaults(run=run)
    groups_plan.add_action(actions)
    groups_move.add_action(actions)
    groups_repair.add_actions(actions)


def run_list(arguments: argparse.Namespace) -> int:
    at = cluster_option(arguments)
    from kzconsumer_tools.groups.reader import read_summaries

    return show(arguments, ask(read_summaries, at.zookeeper), list_table, wide=partial(list_table, wide=True))


def run_describe(arguments: argparse.Namespace) -> int:
    at = cluster_option(arguments)
    found = ask(_describe, at, required_group(arguments, at))
    return show(arguments, found, describe_table, wide=partial(describe_table, wide=True))


async def _describe(at: ClusterOption, group: str) -> GroupDescription:
    from kzconsumer_tools.groups.reader import require_group
    from kzconsumer_tools.offsets.examination import look

    async with at.access() as access:
        await require_group(access.session, at.zookeeper.connect, group)
        seen = await look(access, group, at.storage)
    return describe(seen.view.nodes, seen.view.facts, examined(group, seen.symptoms, seen.not_asked))
