"""`kzconsumer groups verify | doctor | delete | clean | restore`: problems of a group, and removing its nodes.

`verify` and `doctor` change nothing; exit status 3 with a problem, 4 without one if not everything was examined. The
others change something with `--execute` only, after they have written an undo file. JSON has the fields of
`groups.diagnosis.Examined` and `groups.diagnosis.RepairResult`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kzconsumer.errors import NotDoneError, NotFoundError
from kzconsumer.registry.paths import GroupPaths, topic_of
from kzconsumer_tools.commands.cluster_option import (
    ClusterOption,
    add_cluster_option,
    add_group,
    add_storage,
    cluster_flags,
    cluster_option,
    required_group,
)
from kzconsumer_tools.commands.output_and_options import (
    EXIT_NOT_EXAMINED,
    EXIT_OF,
    EXIT_UNHEALTHY,
    add_execute_and_undo,
    ask,
    read_file,
    show,
    write_undo,
)
from kzconsumer_tools.groups.advice import Examined, examined
from kzconsumer_tools.groups.diagnosis import (
    RepairResult,
    deletion,
    lasting,
    leftovers,
    removal,
    repair_result,
    restoration,
    verified,
)
from kzconsumer_tools.groups.group_nodes import members_present, require_no_members
from kzconsumer_tools.node_changes import ChangeProgress, SavedNode, read_nodes
from kzconsumer_tools.tables.group_tables import repair_table, symptoms_table, verified_table

if TYPE_CHECKING:
    from argparse import _SubParsersAction

# Only what two looks have in common is reported: a rebalance between them has ended by then, or is stuck.
SECONDS_BETWEEN_LOOKS = 2.0


def add_actions(actions: _SubParsersAction[argparse.ArgumentParser]) -> None:
    verifying = actions.add_parser(
        "verify",
        help="whether every partition has a registered owner, as kafka.tools.VerifyConsumerRebalance",
        description="Check that every partition of every subscribed topic has an owner that is a registered thread, "
        "as kafka.tools.VerifyConsumerRebalance does; exit status 3 if not, 4 if no member subscribes to a partition "
        "that exists. Changes nothing.",
        examples=("orders", "orders --context prod"),
    )
    doctor = actions.add_parser(
        "doctor",
        help="all problems of a group, and what to do about them",
        description="Compare the group's nodes with the logs and with the result of the assignors; exit status 3 if "
        "there is a problem. Problems that a second look after 2 s no longer finds are a rebalance and not reported. "
        "Changes nothing. Exit status 4 if none is found, but not everything could be examined.",
        examples=("orders", "--config orders.toml"),
    )
    delete = actions.add_parser(
        "delete",
        help="remove the nodes of a group without members",
        description="Remove all nodes of a group without members: offsets, claim records, owner nodes.",
        examples=("orders", "orders --topic old --execute"),
    )
    delete.add_argument("--topic", metavar="TOPIC", help="only the group's nodes of this topic")
    clean = actions.add_parser(
        "clean",
        help="remove nodes that no session holds",
        description="Remove owner nodes and registrations that no session holds, and the group's nodes of partitions "
        "that the cluster does not have, if nobody owns one of that topic. Nodes of live members are never touched.",
        examples=("orders", "orders --execute --undo before.jsonl"),
    )
    for action, run in ((verifying, run_verify), (doctor, run_doctor), (delete, run_delete), (clean, run_clean)):
        add_group(action)
        action.set_defaults(run=run)
    add_storage(doctor)
    restore = actions.add_parser(
        "restore",
        help="restore the nodes of an undo file of delete or clean",
        description="Create the missing nodes of an undo file of `groups delete` or `groups clean`, in a group without "
        "members. If a node exists with other content, nothing is changed.",
        examples=("undo-orders.jsonl", "undo-orders.jsonl --execute"),
    )
    restore.add_argument("file", metavar="FILE", type=Path, help="an undo file")
    restore.set_defaults(run=run_restore)
    for action in (delete, clean, restore):
        add_execute_and_undo(action)
    for action in (verifying, doctor, delete, clean, restore):
        add_cluster_option(action)


def run_verify(arguments: argparse.Namespace) -> int:
    at = cluster_option(arguments)
    group = required_group(arguments, at)
    result = verified(ask(at.nodes, group))
    status = {True: 0, False: EXIT_UNHEALTHY, None: EXIT_NOT_EXAMINED}[result.rebalanced]
    return show(arguments, result, verified_table, status)


def run_doctor(arguments: argparse.Namespace) -> int:
    at = cluster_option(arguments)
    result = ask(_doctor, at, required_group(arguments, at))
    return show(arguments, result, lambda found: symptoms_table(found, "no problem was found"), EXIT_OF[result.health])


async def _doctor(at: ClusterOption, group: str) -> Examined:
    import anyio

    from kzconsumer_tools.groups.group_reader import require_group
    from kzconsumer_tools.offsets.prepare import look

    async with at.access() as access:
        await require_group(access.session, at.zookeeper.connect, group)
        first = await look(access, group, at.storage)
        if not first.symptoms:
            return examined(group, [], first.not_asked)
        await anyio.sleep(SECONDS_BETWEEN_LOOKS)
        second = await look(access, group, at.storage)
        return examined(group, lasting(first.symptoms, second.symptoms), second.not_asked)


def run_delete(arguments: argparse.Namespace) -> int:
    at = cluster_option(arguments)
    return _show_repair(arguments, ask(delete_nodes, arguments, at, required_group(arguments, at)))


async def delete_nodes(arguments: argparse.Namespace, at: ClusterOption, group: str) -> RepairResult:
    from kzconsumer_tools.groups.group_reader import apply_changes, require_group, single, tree_of
    from kzconsumer_tools.offsets.prepare import undo_of_removal

    async with ChangeProgress("node", "removed") as progress, at.access() as access:
        await require_group(access.session, at.zookeeper.connect, group)
        nodes = await access.nodes(group)
        changes = deletion(await tree_of(access.session, GroupPaths(group).root), arguments.topic)
        if not changes:
            raise NotFoundError(f"group {group} has no nodes of topic {arguments.topic}")
        undo = None
        if arguments.execute:
            require_no_members(nodes)
            undo = write_undo(arguments.undo, group, undo_of_removal(nodes, changes))
            progress.begin(len(changes), undo)
            topics = [arguments.topic] if arguments.topic else nodes.topics
            await apply_changes(access.session, GroupPaths(group), single(changes), progress, topics=topics)
    return repair_result(group, changes, undo, executed=undo is not None, in_use=members_present(nodes))


def run_clean(arguments: argparse.Namespace) -> int:
    at = cluster_option(arguments)
    return _show_repair(arguments, ask(clean_nodes, arguments, at, required_group(arguments, at)))


async def clean_nodes(arguments: argparse.Namespace, at: ClusterOption, group: str) -> RepairResult:
    from kzconsumer_tools.groups.group_reader import apply_changes, require_group, single
    from kzconsumer_tools.offsets.prepare import undo_of_removal

    async with ChangeProgress("node", "removed") as progress, at.access() as access:
        await require_group(access.session, at.zookeeper.connect, group)
        nodes = await access.nodes(group)
        found = leftovers(nodes)
        unheld = removal(nodes, [each for each in found if each.kind != "topic_gone"])
        rest = removal(nodes, [each for each in found if each.kind == "topic_gone"])
        undo = None
        if arguments.execute and found:
            gone = {each.path for each in rest}
            undo = write_undo(arguments.undo, group, undo_of_removal(nodes, [*unheld, *rest], gone))
            progress.begin(len(unheld) + len(rest), undo)
            # Allowed while members are live: these nodes prevent members from working.
            await apply_changes(access.session, GroupPaths(group), single(unheld), progress, with_members=True)
            topics = {topic_of(each.path) for each in rest if each.path != GroupPaths(group).run}
            live = bool(nodes.registrations)
            await apply_changes(
                access.session, GroupPaths(group), single(rest), progress, topics=topics, with_members=live
            )
    reasons = {each.path: each.reason for each in found}
    return repair_result(group, [*unheld, *rest], undo, executed=undo is not None, reasons=reasons)


def run_restore(arguments: argparse.Namespace) -> int:
    at = cluster_option(arguments)
    try:
        saved = read_nodes(read_file(arguments.file))
        groups = {node.path.split("/")[2] for node in saved if node.path.startswith("/consumers/")}
        if len(groups) != 1:
            raise ValueError("not the nodes of one group")
    except (ValueError, IndexError) as error:
        raise NotDoneError(f"{arguments.file}: {error}") from None
    return _show_repair(arguments, ask(restore_nodes, arguments, at, groups.pop(), saved))


async def restore_nodes(
    arguments: argparse.Namespace, at: ClusterOption, group: str, saved: Sequence[SavedNode]
) -> RepairResult:
    from kzconsumer_tools.groups.group_reader import apply_changes, make_parents, single, tree_of
    from kzconsumer_tools.offsets.prepare import require_same_topics

    async with ChangeProgress("node", "created") as progress, at.access() as access:
        nodes = await access.nodes(group)
        try:
            changes = restoration(saved, await tree_of(access.session, GroupPaths(group).root))
            made = {change.path for change in changes}
            await require_same_topics(access, group, [each for each in saved if each.path in made])
        except ValueError as error:
            raise NotDoneError(f"{arguments.file}: {error}; nothing was changed") from None
        executed = arguments.execute and bool(changes)
        if executed:
            require_no_members(nodes)
            progress.begin(len(changes))
            await make_parents(access.session, changes)
            await apply_changes(access.session, GroupPaths(group), single(changes), progress)
    return repair_result(group, changes, None, executed=executed, in_use=members_present(nodes))


def _show_repair(arguments: argparse.Namespace, result: RepairResult) -> int:
    return show(arguments, result, lambda found: repair_table(found, cluster_flags(arguments)))
