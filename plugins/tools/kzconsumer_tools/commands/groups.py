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
from kzconsumer_tools.commands.group_names import add_group_names, wanted_groups
from kzconsumer_tools.groups.description import GroupDescription, describe
from kzconsumer_tools.groups.diagnosis import examined
from kzconsumer_tools.tables.groups import describe_table, list_table

if TYPE_CHECKING:
    from argparse import _SubParsersAction
    from collections.abc import Callable

    from kzconsumer_tools.offsets.group_summary import GroupSummary


def add_arguments(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    groups = subparsers.add_parser("groups", help="list, describe, plan, verify, repair, move and delete groups")
    actions = groups.add_subparsers(dest="action", required=True, metavar="ACTION")
    listing = actions.add_parser(
        "list",
        help="every group: its members, its topics, its lag and its last commit",
        description="List all groups, also those without members, and those that may not be read. Changes nothing.",
        examples=("", "--zookeeper zk1:2181,zk2:2181/kafka", "--context prod -o csv"),
    )
    describing = actions.add_parser(
        "describe",
        help="one group: members, owners, stored offsets, problems",
        description="Show the members, partitions, owners and stored offsets of a group, and every invalid node. "
        "Changes nothing. The verdict is that of `doctor`, after one look.",
        examples=("orders", "--config orders.toml", "orders --storage kafka -o json"),
    )
    add_group_names(listing)
    add_group(describing)
    add_storage(describing)
    for action, run in ((listing, run_list), (describing, run_describe)):
        add_cluster_option(action)
        action.set_defaults(run=run)
    groups_plan.add_action(actions)
    groups_move.add_action(actions)
    groups_repair.add_actions(actions)


def run_list(arguments: argparse.Namespace) -> int:
    at, wanted = cluster_option(arguments), wanted_groups(arguments)
    return show(arguments, overview(at, wanted), list_table, wide=partial(list_table, wide=True))


def overview(at: ClusterOption, wanted: Callable[[str], bool]) -> list[GroupSummary]:
    """As `read_overview`, with the number of groups that were read as progress."""
    from kzconsumer.cli.progress import progress

    with progress("reading groups") as shown:
        return ask(_overview, at, wanted, shown, what=None)


async def _overview(
    at: ClusterOption, wanted: Callable[[str], bool], shown: Callable[[int, int], None]
) -> list[GroupSummary]:
    import math

    from kzconsumer_tools.offsets.overview import read_overview

    async with at.access(math.inf) as access:
        return await read_overview(access, at.zookeeper.connect, wanted, shown)


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
