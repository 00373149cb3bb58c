"""`kzconsumer groups list` and `groups describe`: the groups in ZooKeeper as they are, originals' and ours.

Owns no state, changes nothing. Standard output is the answer, tables of 80 columns or JSON with the
fields of `group.group_description`.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from kzconsumer_tools.commands import groups_repair
from kzconsumer_tools.commands.cluster_option import add_group, add_storage, add_target, required_group, target

if TYPE_CHECKING:
    from argparse import _SubParsersAction


def add_arguments(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    groups = subparsers.add_parser("groups", help="list, describe, verify, examine, delete and clean groups")
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
        "it should be. Nothing is changed, and no broker is asked but for offsets that are stored there.",
    )
    add_group(describing)
    add_storage(describing)
    for action, run in ((listing, run_list), (describing, run_describe)):
        add_target(action)
        action.set_defaults(run=run)
    groups_repair.add_actions(actions)


def run_list(arguments: argparse.Namespace) -> int:
    at = target(arguments)

    import anyio
    import msgspec

    from kzconsumer.logs import setup
    from kzconsumer_tools.groups.reader import read_summaries
    from kzconsumer_tools.tables.groups import list_table

    setup.for_one_answer()
    groups = anyio.run(read_summaries, at.zookeeper)
    print(msgspec.json.encode(groups).decode() if arguments.output == "json" else list_table(groups))
    return 0


def run_describe(arguments: argparse.Namespace) -> int:
    at = target(arguments)
    group = required_group(arguments, at)

    import anyio
    import msgspec

    from kzconsumer.logs import setup
    from kzconsumer_tools.groups.description import describe
    from kzconsumer_tools.tables.groups import describe_table

    setup.for_one_answer()
    seen = anyio.run(at.seen, group)
    found = describe(seen.nodes, seen.known)
    print(msgspec.json.encode(found).decode() if arguments.output == "json" else describe_table(found))
    return 0
