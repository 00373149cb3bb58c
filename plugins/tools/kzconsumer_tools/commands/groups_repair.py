"""`kzconsumer groups verify | doctor | delete | clean | restore`: what is wrong with a group, what it leaves behind.

Owns no state. `verify` and `doctor` change nothing and end with status 3 where something is wrong. The others show what
they would change, and do it with `--execute`, behind an undo file. JSON has the fields of `group.diagnosis` and below.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from kzconsumer.logs.logger import get_logger
from kzconsumer_tools.commands.cluster_option import Target, add_group, add_target, required_group, target
from kzconsumer_tools.commands.execute_option import add_execute
from kzconsumer_tools.groups.results import Cared, ChangedNode, Examined

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    from kzconsumer.assignors.interface import Assignor
    from kzconsumer_tools.groups.cluster_access import Outside
    from kzconsumer_tools.groups.diagnosis import Symptom
    from kzconsumer_tools.groups.nodes import GroupNodes
    from kzconsumer_tools.node_changes import Change, SavedNode


EXIT_NOT_HEALTHY = 3
# Of two looks only what both have seen counts: a rebalance between them is over by then, or stuck.
SECONDS_BETWEEN_LOOKS = 2.0


def add_actions(actions: _SubParsersAction[argparse.ArgumentParser]) -> None:
    verify = actions.add_parser(
        "verify",
        help="whether every partition has a registered owner, as kafka.tools.VerifyConsumerRebalance",
        description="Say whether every partition of every subscribed topic has an owner that is a registered thread, "
        "as kafka.tools.VerifyConsumerRebalance does; exit status 3 if not. Nothing is changed, no broker is asked.",
    )
    doctor = actions.add_parser(
        "doctor",
        help="everything that is wrong with a group, and what to do about it",
        description="Examine the group's nodes beside the logs, and beside what the assignors compute; exit status 3 "
        "when something is wrong. What a second look after 2 s no longer finds was a rebalance. Nothing is changed.",
    )
    delete = actions.add_parser(
        "delete",
        help="remove the nodes of a group without members",
        description="Remove all nodes of a group without members: offsets, claim records, what is left of owners.",
    )
    delete.add_argument("--topic", metavar="TOPIC", help="only what it has of this topic")
    clean = actions.add_parser(
        "clean",
        help="remove nodes that are nobody's",
        description="Remove owner nodes and registrations that no session holds, and, of a group without members, what "
        "it has of topics that the cluster does not have. What a member holds is never touched.",
    )
    for action, run in ((verify, run_verify), (doctor, run_doctor), (delete, run_delete), (clean, run_clean)):
        add_group(action)
        action.set_defaults(run=run)
    restore = actions.add_parser(
        "restore",
        help="make the nodes of an undo file of delete or clean again",
        description="Make the nodes of an undo file of `groups delete` or `groups clean` that are missing, in a group "
        "without members. Where another node stands today nothing is done.",
    )
    restore.add_argument("file", metavar="FILE", type=Path)
    restore.set_defaults(run=run_restore)
    for action in (delete, clean, restore):
        add_execute(action)
    for action in (verify, doctor, delete, clean, restore):
        add_target(action)


def run_verify(arguments: argparse.Namespace) -> int:
    from kzconsumer_tools.groups.diagnosis import verify
    from kzconsumer_tools.groups.reader import read_nodes

    at = target(arguments)
    group = required_group(arguments, at)
    nodes: GroupNodes = _ready()(read_nodes, at.zookeeper, group)
    return _examined(arguments, group, verify(nodes), "every partition has an owner that is a registered thread")


def run_doctor(arguments: argparse.Namespace) -> int:
    at = target(arguments)
    group = required_group(arguments, at)
    symptoms: list[Symptom] = _ready()(_examine, at, group)
    return _examined(arguments, group, symptoms, "nothing is wrong")


async def _examine(at: Target, group: str) -> list[Symptom]:
    import anyio

    from kzconsumer_tools.groups.diagnosis import examine, lasting
    from kzconsumer_tools.groups.nodes import facts
    from kzconsumer_tools.groups.reader import nodes_of, require_group

    assignors = _assignors()

    async def look(outside: Outside) -> tuple[list[Symptom], int]:
        nodes = await nodes_of(outside.session, group)
        known = facts(nodes)
        wanted = known.existing.intersection(known.offsets)
        logs = await outside.known_logs(wanted)
        return examine(nodes, logs, assignors), len(wanted) - len(logs)

    async with at.outside() as outside:
        await require_group(outside.session, at.zookeeper.connect, group)
        found, unseen = await look(outside)
        if found:
            await anyio.sleep(SECONDS_BETWEEN_LOOKS)
            again, unseen = await look(outside)
            found = lasting(found, again)
        if unseen:
            setup = get_logger("kzconsumer.cli")
            setup.error("stored offsets not compared with the logs, whose leaders do not answer", partitions=unseen)
        return found


def _assignors() -> Mapping[str, Assignor]:
    """Every one that is installed and can be loaded: which of them members run, the group tells."""
    from typing import cast

    from kzconsumer.errors import PluginError
    from kzconsumer.plugins import ASSIGNORS, list_plugins, load

    found: dict[str, Assignor] = {}
    for plugin in list_plugins(ASSIGNORS):
        try:
            found[plugin.name] = cast("Assignor", load(ASSIGNORS, plugin.name))
        except PluginError:
            continue  # `kzconsumer plugins` shows it
    return found


def run_delete(arguments: argparse.Namespace) -> int:
    at = target(arguments)
    answer: Cared = _ready()(_delete, arguments, at, required_group(arguments, at))
    return _cared(arguments, answer)


async def _delete(arguments: argparse.Namespace, at: Target, group: str) -> Cared:
    from kzconsumer.errors import NotThere
    from kzconsumer.registry.paths import GroupPaths
    from kzconsumer_tools.commands.execute_option import write_undo
    from kzconsumer_tools.groups.apply import carry_out, single
    from kzconsumer_tools.groups.leftovers import deletion
    from kzconsumer_tools.groups.members_present import refuse_attended
    from kzconsumer_tools.groups.reader import nodes_of, require_group, tree_of

    async with at.outside() as outside:
        await require_group(outside.session, at.zookeeper.connect, group)
        nodes = await nodes_of(outside.session, group)
        changes = deletion(await tree_of(outside.session, GroupPaths(group).root), arguments.topic)
        if not changes:
            raise NotThere(f"group {group} has no nodes of topic {arguments.topic}")
        undo = None
        if arguments.execute:
            refuse_attended(nodes)
            undo = write_undo(arguments.undo, group, changes)
            topics = [arguments.topic] if arguments.topic else nodes.topics
            await carry_out(outside.session, GroupPaths(group), single(changes), topics=topics)
    return _answer(nodes, changes, {}, undo, executed=undo is not None)


def run_clean(arguments: argparse.Namespace) -> int:
    at = target(arguments)
    answer: Cared = _ready()(_clean, arguments, at, required_group(arguments, at))
    return _cared(arguments, answer)


async def _clean(arguments: argparse.Namespace, at: Target, group: str) -> Cared:
    from kzconsumer.registry.paths import GroupPaths, topic_of
    from kzconsumer_tools.commands.execute_option import write_undo
    from kzconsumer_tools.groups.apply import carry_out, single
    from kzconsumer_tools.groups.leftovers import leftovers, removal
    from kzconsumer_tools.groups.reader import nodes_of, require_group

    async with at.outside() as outside:
        await require_group(outside.session, at.zookeeper.connect, group)
        nodes = await nodes_of(outside.session, group)
        found = leftovers(nodes)
        reasons = {each.path: each.reason for each in found}
        nobodys = removal(nodes, [each for each in found if each.kind != "topic_gone"])
        rest = removal(nodes, [each for each in found if each.kind == "topic_gone"])
        undo = None
        if arguments.execute and found:
            undo = write_undo(arguments.undo, group, [*nobodys, *rest])
            # These may go while members live: they are what keeps members from working.
            await carry_out(outside.session, GroupPaths(group), single(nobodys), attended=True)
            topics = {topic_of(each.path) for each in rest if each.path != GroupPaths(group).run}
            await carry_out(outside.session, GroupPaths(group), single(rest), topics=topics)
    return _answer(nodes, [*nobodys, *rest], reasons, undo, executed=undo is not None)


def run_restore(arguments: argparse.Namespace) -> int:
    from kzconsumer.errors import NotDone
    from kzconsumer_tools.commands.execute_option import read_file
    from kzconsumer_tools.node_changes import read_nodes

    at = target(arguments)
    try:
        saved = read_nodes(read_file(arguments.file))
        groups = {node.path.split("/")[2] for node in saved if node.path.startswith("/consumers/")}
        if len(groups) != 1:
            raise ValueError("not the nodes of one group")
    except (ValueError, IndexError) as error:
        raise NotDone(f"{arguments.file}: {error}") from None
    answer: Cared = _ready()(_restore, arguments, at, groups.pop(), saved)
    return _cared(arguments, answer)


async def _restore(arguments: argparse.Namespace, at: Target, group: str, saved: Sequence[SavedNode]) -> Cared:
    from kzconsumer.errors import NotDone
    from kzconsumer.registry.paths import GroupPaths
    from kzconsumer_tools.groups.apply import carry_out, make_parents, single
    from kzconsumer_tools.groups.leftovers import restoration
    from kzconsumer_tools.groups.members_present import refuse_attended
    from kzconsumer_tools.groups.reader import nodes_of, tree_of

    async with at.outside() as outside:
        nodes = await nodes_of(outside.session, group)
        try:
            changes = restoration(saved, await tree_of(outside.session, GroupPaths(group).root))
        except ValueError as error:
            raise NotDone(f"{arguments.file}: {error}; nothing was changed") from None
        executed = arguments.execute and bool(changes)
        if executed:
            refuse_attended(nodes)
            await make_parents(outside.session, changes)
            await carry_out(outside.session, GroupPaths(group), single(changes))
    return _answer(nodes, changes, {}, None, executed=executed)


def _answer(
    nodes: GroupNodes, changes: Sequence[Change], reasons: Mapping[str, str], undo: Path | None, *, executed: bool
) -> Cared:
    from kzconsumer_tools.groups.members_present import attending

    return Cared(
        group=nodes.group,
        executed=executed,
        undo=str(undo) if undo is not None else None,
        attended=attending(nodes),
        nodes=tuple(
            ChangedNode(each.path, _text(each.before), _text(each.after), reasons.get(each.path)) for each in changes
        ),
    )


def _text(data: bytes | None) -> str | None:
    return data.decode("utf-8", "replace") if data is not None else None


def _ready() -> Callable[..., Any]:
    """What runs an errand: `anyio.run`, with warnings going to standard error."""
    import anyio

    from kzconsumer.logs import setup

    setup.for_one_answer()
    return anyio.run


def _examined(arguments: argparse.Namespace, group: str, symptoms: list[Symptom], fine: str) -> int:
    from kzconsumer_tools.tables.groups_repair import examined_table

    answer = Examined(group, not symptoms, tuple(symptoms))
    shown = msgspec.json.encode(answer).decode() if arguments.output == "json" else examined_table(answer, fine)
    print(shown)
    return EXIT_NOT_HEALTHY if symptoms else 0


def _cared(arguments: argparse.Namespace, answer: Cared) -> int:
    from kzconsumer_tools.commands.cluster_option import again
    from kzconsumer_tools.tables.groups_repair import cared_table

    print(msgspec.json.encode(answer).decode() if arguments.output == "json" else cared_table(answer, again(arguments)))
    return 0
