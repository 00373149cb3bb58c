"""`kzconsumer groups move`: the offsets of a group in ZooKeeper for a Kafka consumer group, or back.

JSON has the fields of `offsets.moved.MovedGroup`.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from msgspec.structs import replace

from kzconsumer.errors import NotDoneError
from kzconsumer_tools.commands.answer import EXIT_UNHEALTHY, ask, show
from kzconsumer_tools.commands.cluster_option import (
    ClusterOption,
    add_cluster_option,
    add_group,
    add_storage,
    cluster_flags,
    cluster_option,
    group_name,
    required_group,
)
from kzconsumer_tools.commands.execute_option import add_change_of_offsets, write_undo
from kzconsumer_tools.commands.topic_option import add_topics, chosen_topics
from kzconsumer_tools.tables.groups_move import compared_table, move_table

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    from kzconsumer_tools.offsets.move import Asked
    from kzconsumer_tools.offsets.moved import MovedGroup


def add_action(actions: _SubParsersAction[argparse.ArgumentParser]) -> None:
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
    moving.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from kzconsumer_tools.offsets.move import Asked

    if arguments.verify and arguments.execute:
        arguments.misused("--verify only compares; give it without --execute")
    at = cluster_option(arguments)
    group = required_group(arguments, at)
    other = arguments.to_kafka or arguments.from_kafka
    asked = Asked(
        group=group,
        kafka_group=group if other is True else other,
        to="kafka" if arguments.to_kafka else "zookeeper",
        storage=at.storage if arguments.storage or arguments.config is not None else None,
        scope=chosen_topics(arguments.topic),
    )
    result = ask(_move, arguments, at, asked)
    if arguments.verify:
        return show(arguments, result, compared_table, 0 if result.same else EXIT_UNHEALTHY)
    return show(arguments, result, lambda found: move_table(found, cluster_flags(arguments)))


async def _move(arguments: argparse.Namespace, at: ClusterOption, asked: Asked) -> MovedGroup:
    from kzconsumer_tools.commands.offsets_apply import refuse_republishing
    from kzconsumer_tools.groups.reader import require_group
    from kzconsumer_tools.offsets.move import apply_move, prepare_move

    async with at.access() as access:
        if asked.to == "kafka":
            await require_group(access.session, at.zookeeper.connect, asked.group)
        move = await prepare_move(access, asked)
        if not arguments.execute:
            return move.shown
        if move.shown.blocked:
            raise NotDoneError(f"{'; '.join(move.shown.blocked)}; nothing was changed")
        if not any(each.changes for each in move.shown.partitions):
            return move.shown
        if not arguments.republish:
            refuse_republishing(asked.group, move.shown.partitions)
        written = write_undo(arguments.undo, asked.kafka_group, move.changes.undo_file())
        await apply_move(access, asked, move)
        return replace(move.shown, executed=True, undo=str(written))
