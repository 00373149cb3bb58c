"""`kzconsumer groups list | describe | plan | move`: the consumer groups in ZooKeeper, original members and ours.

JSON of `list` and `describe` has the fields of `groups.group_description`.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, cast

from msgspec.structs import replace

from kzconsumer.cli.arguments import layers_given, whole_number
from kzconsumer.errors import NotDoneError, NotFoundError
from kzconsumer.plugins import ASSIGNORS, load_chosen
from kzconsumer.registry.group_records import Registration, registered
from kzconsumer.settings.settings import Settings, toml_value
from kzconsumer_tools import contexts
from kzconsumer_tools.commands import groups_repair
from kzconsumer_tools.commands.cluster_option import (
    ClusterOption,
    add_cluster_option,
    add_group,
    add_storage,
    cluster_flags,
    cluster_layers,
    cluster_option,
    group_name,
    required_group,
    said_storage,
)
from kzconsumer_tools.commands.output_and_options import (
    EXIT_UNHEALTHY,
    add_change_of_offsets,
    add_group_names,
    add_topics,
    ask,
    chosen_topics,
    show,
    wanted_groups,
    write_undo,
)
from kzconsumer_tools.groups.advice import examined
from kzconsumer_tools.groups.group_description import GroupDescription, describe, preview
from kzconsumer_tools.node_changes import ChangeProgress
from kzconsumer_tools.tables.group_tables import describe_table, list_table, table
from kzconsumer_tools.tables.offset_tables import compared_table, move_table

if TYPE_CHECKING:
    from argparse import _SubParsersAction
    from collections.abc import Callable

    from kzconsumer.assignors import Assignor
    from kzconsumer_tools.groups.group_lag import GroupSummary
    from kzconsumer_tools.offsets.move import MoveRequest
    from kzconsumer_tools.offsets.move_rules import MovedGroup


# `kzconsumer groups plan`: who would own which partitions if members joined.
#
# JSON has the fields of `groups.group_description.AssignmentPreview`.


def add_plan(actions: _SubParsersAction[argparse.ArgumentParser]) -> None:
    plan = actions.add_parser(
        "plan",
        help="preview the assignment if members joined",
        description="Read the group, and show which partitions each member would own, and which would move, if members "
        "joined: one by default, with the file's subscription, or that of most members. Changes nothing. The ids of "
        "joining members are made up; a real member has another id, and so perhaps another position among the members.",
        examples=("orders", "orders --members 3 --context prod", "--config orders.toml --member 4 1"),
    )
    add_group(plan)
    plan.add_argument(
        "--assignor",
        metavar="NAME",
        action="append",
        dest="flags_of_verb",
        type=lambda name: f"group.assignor={toml_value(name)}",
        default=[],
        help="the assignor of all members; default: as the settings say, else range",
    )
    add_cluster_option(plan)
    joining = plan.add_mutually_exclusive_group()
    joining.add_argument(
        "--members", type=whole_number("a number of members"), metavar="N", help="number of joining members; may be 0"
    )
    joining.add_argument(
        "--member",
        type=whole_number("a number of streams", 1),
        nargs="+",
        metavar="STREAMS",
        help="streams per topic of each joining member",
    )
    plan.set_defaults(run=run_plan)


def run_plan(arguments: argparse.Namespace) -> int:
    import anyio

    from kzconsumer.cli.arguments import progress
    from kzconsumer.logs import setup
    from kzconsumer_tools.groups.cluster_access import read_group

    settings, named = _settings(arguments)
    setup.configure("warning", "line")  # an ignored registration changes the result
    chosen = settings.group
    streams = arguments.member or [None] * (1 if arguments.members is None else arguments.members)
    with named, progress("waiting for the cluster"):
        assignor = cast("Assignor", load_chosen(ASSIGNORS, chosen.assignor, f"{settings.source}: [group] assignor"))
        wanted = registered(settings.require_subscription()) if streams and arguments.config is not None else None
        joining = partial(_joining, settings, streams, wanted)
        group = anyio.run(read_group, settings, joining)
    result = preview(chosen.id, chosen.assignor, assignor, group.present, group.joined, group.owners)
    return show(arguments, result, table)


def _settings(arguments: argparse.Namespace) -> tuple[Settings, AbstractContextManager[object]]:
    """The file's, or those of the chosen cluster; and what names the origin of a fault."""
    if arguments.group is None or arguments.config is not None:
        layers = layers_given(arguments)
        settings = Settings.of(layers)
    else:
        layers = cluster_layers(arguments)
        settings = contexts.cluster_settings(layers)
    group = replace(settings.group, id=arguments.group or settings.group.id)
    return replace(settings, group=group), layers.named()


def _joining(
    settings: Settings, streams: list[int | None], wanted: Registration | None, present: Mapping[str, Registration]
) -> dict[str, Registration]:
    """Consumer id -> registration of the joining members; None stands for the usual numbers of streams.

    `wanted`: as the file says; None: as most of the members that are present.

    Raises NotFoundError if nothing says what they subscribe to.
    """
    from kzconsumer.group.membership import new_consumer_id

    usual = wanted or _of_most(present)
    if usual is None:
        if not streams:
            return {}
        raise NotFoundError(
            f"group {settings.group.id} has no members, so a new one's topics are unknown; give --config FILE"
        )
    # Only one member can have the fixed id of the file.
    fixed = [settings.group.consumer_id, *[None] * len(streams)]
    ids = [new_consumer_id(settings.group.id, known) for known in fixed[: len(streams)]]
    return {consumer: _with_streams(usual, number) for consumer, number in zip(ids, streams, strict=True)}


def _of_most(present: Mapping[str, Registration]) -> Registration | None:
    """The subscription of most members, of ours or not."""
    alike: dict[tuple[str, tuple[tuple[str, int], ...]], list[Registration]] = {}
    for member in present.values():
        alike.setdefault((member.pattern, tuple(sorted(member.subscription.items()))), []).append(member)
    return max(alike.values(), key=len)[0] if alike else None


def _with_streams(usual: Registration, streams: int | None) -> Registration:
    return usual if streams is None else replace(usual, subscription=dict.fromkeys(usual.subscription, streams))


# `kzconsumer groups move`: the offsets of a group in ZooKeeper for a Kafka consumer group, or back.
#
# JSON has the fields of `offsets.move_rules.MovedGroup`.


def add_move(actions: _SubParsersAction[argparse.ArgumentParser]) -> None:
    moving = actions.add_parser(
        "move",
        help="hand a group over to Kafka's own consumers, with its offsets, or take it back",
        description="Copy the offsets of a group without members from ZooKeeper to a group that the brokers "
        "coordinate, so that Kafka's own consumers continue at the next record of each partition; or back. Shows both "
        "sides, what would change and what has to be resolved before. Nothing is removed, and no offset is adjusted. "
        "`kzconsumer offsets import FILE --execute` restores from the undo file what the group had before.",
        examples=(
            "orders --to-kafka",
            "orders --to-kafka orders-v2 --execute",
            "orders --to-kafka orders-v2 --verify",
            "orders --from-kafka orders-v2 --execute",
        ),
    )
    add_group(moving)
    way = moving.add_mutually_exclusive_group(required=True)
    for flag, what in (("--to-kafka", "gets"), ("--from-kafka", "has")):
        way.add_argument(
            flag,
            metavar="KAFKA-GROUP",
            nargs="?",
            const=True,
            type=group_name,
            help=f"the group.id of Kafka's consumers, which {what} the offsets; default: the same name",
        )
    moving.add_argument(
        "--verify", action="store_true", help="only compare both sides; exit status 3 if their offsets differ"
    )
    add_storage(moving)
    add_topics(moving)
    add_change_of_offsets(moving, "with --from-kafka: ")
    add_cluster_option(moving)
    moving.set_defaults(run=run_move)


def run_move(arguments: argparse.Namespace) -> int:
    from kzconsumer_tools.offsets.move import MoveRequest

    if arguments.verify and arguments.execute:
        arguments.misused("--verify only compares; give it without --execute")
    at = cluster_option(arguments)
    group = required_group(arguments, at)
    other = arguments.to_kafka or arguments.from_kafka
    asked = MoveRequest(
        group=group,
        kafka_group=group if other is True else other,
        to="kafka" if arguments.to_kafka else "zookeeper",
        storage=said_storage(arguments, at),
        scope=chosen_topics(arguments.topic),
    )
    result = ask(_move, arguments, at, asked)
    if arguments.verify:
        return show(arguments, result, compared_table, 0 if result.same else EXIT_UNHEALTHY)
    return show(arguments, result, lambda found: move_table(found, cluster_flags(arguments)))


async def _move(arguments: argparse.Namespace, at: ClusterOption, asked: MoveRequest) -> MovedGroup:
    from kzconsumer_tools.commands.offsets_apply import refuse_republishing
    from kzconsumer_tools.groups.group_reader import require_group
    from kzconsumer_tools.offsets.move import apply_move, prepare_move

    async with ChangeProgress("partition") as progress, at.access() as access:
        if asked.to == "kafka":
            await require_group(access.session, at.zookeeper.connect, asked.group)
        move = await prepare_move(access, asked)
        if not arguments.execute:
            return move.shown
        if move.shown.blocked:
            raise NotDoneError(f"{'; '.join(move.shown.blocked)}; nothing was changed")
        changing = sum(each.changes for each in move.shown.partitions)
        if not changing:
            return move.shown
        if not arguments.republish:
            refuse_republishing(asked.group, move.shown.partitions)
        written = write_undo(arguments.undo, asked.kafka_group, move.changes.undo_file())
        progress.begin(changing, written)
        await apply_move(access, asked, move, progress)
        return replace(move.shown, executed=True, undo=str(written))


def add_groups(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
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
    add_plan(actions)
    add_move(actions)
    groups_repair.add_actions(actions)


def run_list(arguments: argparse.Namespace) -> int:
    at, wanted = cluster_option(arguments), wanted_groups(arguments)
    listed = partial(list_table, chosen=bool(arguments.include or arguments.exclude))
    return show(arguments, overview(at, wanted), listed, wide=partial(listed, wide=True))


def overview(at: ClusterOption, wanted: Callable[[str], bool]) -> list[GroupSummary]:
    """As `read_overview`, with the number of groups that were read as progress."""
    from kzconsumer.cli.arguments import progress

    with progress("reading groups") as shown:
        return ask(_overview, at, wanted, shown, what=None)


async def _overview(
    at: ClusterOption, wanted: Callable[[str], bool], shown: Callable[[int, int], None]
) -> list[GroupSummary]:
    import math

    from kzconsumer_tools.offsets.all_groups import read_overview

    async with at.access(math.inf) as access:
        return await read_overview(access, at.zookeeper.connect, wanted, shown)


def run_describe(arguments: argparse.Namespace) -> int:
    at = cluster_option(arguments)
    found = ask(described_group, at, required_group(arguments, at))
    return show(arguments, found, describe_table, wide=partial(describe_table, wide=True))


async def described_group(at: ClusterOption, group: str) -> GroupDescription:
    from kzconsumer_tools.groups.group_reader import require_group
    from kzconsumer_tools.offsets.prepare import look

    async with at.access() as access:
        await require_group(access.session, at.zookeeper.connect, group)
        seen = await look(access, group, at.storage)
    return describe(seen.view.nodes, seen.view.facts, examined(group, seen.symptoms, seen.not_asked))
