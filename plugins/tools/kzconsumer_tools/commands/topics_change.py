"""`kzconsumer topics reassign | elect-preferred | delete`: what the controller is asked for, and watched doing.

Owns no state. Shows what it would ask for, and asks with `--execute`; then it waits until the controller is done, with
a line of progress on a terminal. JSON has the fields of the answers below.
"""

from __future__ import annotations

import argparse
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from kzconsumer_tools.cluster.results import Deleted, Elected, Reassigned
from kzconsumer_tools.commands.cluster_option import Target, add_target, target
from kzconsumer_tools.commands.execute_option import add_executing
from kzconsumer_tools.commands.reset_options import topic_scope, topics_together

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    from kzconsumer.zookeeper.session import ZooKeeperSession
    from kzconsumer_tools.cluster.description import TopicDescription
    from kzconsumer_tools.cluster.requests import Move


T = TypeVar("T")

# Seconds that a controller is waited for; it goes on for as long as it takes.
WAIT = 300.0


def add_actions(actions: _SubParsersAction[argparse.ArgumentParser]) -> None:
    reassigning = actions.add_parser(
        "reassign",
        help="move partitions to other brokers",
        description="Have the controller move partitions to other replicas, the first of which is preferred to lead. "
        "What they are moved from is kept in a file first, of the same form as kafka-reassign-partitions.sh has.",
    )
    form = "such as orders:0=2,1: partition 0 on brokers 2 and 1"
    reassigning.add_argument("moves", metavar="TOPIC:PARTITION=BROKERS", nargs="*", type=_move, help=form)
    reassigning.add_argument("--file", metavar="FILE", type=Path, help="or a file as Kafka's own tool takes")
    undo = "where to keep what they are moved from (default: a new file in this folder, named in the answer)"
    electing = actions.add_parser(
        "elect-preferred",
        help="have partitions led by the first of their replicas",
        description="Have the controller make the first replica the leader again, of the partitions where it is not.",
    )
    electing.add_argument("topics", metavar="TOPIC", nargs="*", type=topic_scope, help="or TOPIC:0,1; default: all")
    deleting = actions.add_parser(
        "delete",
        help="delete topics, with all their records",
        description="Have the controller delete topics, with all their records: nothing brings them back. Refused "
        "while a member of a group in ZooKeeper owns some of them.",
    )
    deleting.add_argument("topics", metavar="TOPIC", nargs="+")
    for action, run in ((reassigning, run_reassign), (electing, run_elect), (deleting, run_delete)):
        add_executing(action)
        if action is reassigning:
            action.add_argument("--undo", metavar="FILE", type=Path, help=undo)
        seconds = "how long to wait until it is done (default 300); 0: not at all"
        action.add_argument("--wait", metavar="SECONDS", type=_seconds, default=WAIT, help=seconds)
        add_target(action)
        action.set_defaults(run=run)


def run_reassign(arguments: argparse.Namespace) -> int:
    from kzconsumer_tools.commands.cluster_option import again
    from kzconsumer_tools.tables.topics import reassigned_table

    at = target(arguments)
    if bool(arguments.moves) == (arguments.file is not None):
        arguments.misused("give TOPIC:PARTITION=BROKERS (one or more), or --file FILE")
    wanted = _of_file(arguments.file) if arguments.file is not None else dict(arguments.moves)
    if len(wanted) < len(arguments.moves):
        arguments.misused("a partition is given twice")
    answer = _carried_out(_reassign, arguments, at, wanted)
    return _answered(arguments, answer, answer.pending, lambda: reassigned_table(answer, again(arguments)))


async def _reassign(
    arguments: argparse.Namespace, at: Target, wanted: dict[tuple[str, int], tuple[int, ...]]
) -> Reassigned:
    from kzconsumer.registry.sessions import short_session
    from kzconsumer_tools.cluster import apply, requests

    async with short_session(at.zookeeper) as session:
        topics = list(dict.fromkeys(topic for topic, _ in wanted))
        cluster, shown = await apply.looked_at(session, at.zookeeper, topics)
        moves = requests.moves(cluster, shown, wanted)
        changing = [each for each in moves if each.changes]
        if not arguments.execute or not changing:
            return Reassigned(False, None, (), tuple(moves))
        requests.require_controller(cluster)
        undo = _keep(arguments.undo, changing)
        await apply.ask(session, [requests.reassignment_request(changing)])
    asked = {f"{each.topic}-{each.partition}" for each in changing}
    left = await _waited(arguments, at, apply.moving, asked)
    if not left and arguments.wait:
        _require(requests.not_moved(await _now(at, topics), changing), "moved")
    return Reassigned(True, str(undo), tuple(sorted(left)), tuple(moves))


def run_elect(arguments: argparse.Namespace) -> int:
    from kzconsumer_tools.tables.topics import elected_table

    at = target(arguments)
    answer = _carried_out(_elect, arguments, at)
    return _answered(arguments, answer, answer.pending, lambda: elected_table(answer))


async def _elect(arguments: argparse.Namespace, at: Target) -> Elected:
    from kzconsumer.registry.sessions import short_session
    from kzconsumer_tools.cluster import apply, requests

    scope = topics_together(arguments.topics)
    async with short_session(at.zookeeper) as session:
        cluster, shown = await apply.looked_at(session, at.zookeeper, list(scope) if scope is not None else None)
        found = requests.elections(cluster, shown, scope)
        electing = [each for each in found if each.reason is None]
        if not arguments.execute or not electing:
            return Elected(False, (), tuple(found))
        requests.require_controller(cluster)
        await apply.ask(session, [requests.election_request(electing)])
    left = await _waited(arguments, at, apply.electing, {f"{each.topic}-{each.partition}" for each in electing})
    if not left and arguments.wait:
        topics = list(dict.fromkeys(each.topic for each in electing))
        _require(requests.not_elected(await _now(at, topics), electing), "led by its preferred leader")
    return Elected(True, tuple(sorted(left)), tuple(found))


def run_delete(arguments: argparse.Namespace) -> int:
    from kzconsumer_tools.tables.topics import deleted_table

    at = target(arguments)
    answer = _carried_out(_delete, arguments, at)
    return _answered(arguments, answer, answer.pending, lambda: deleted_table(answer))


async def _delete(arguments: argparse.Namespace, at: Target) -> Deleted:
    from kzconsumer.errors import NotDone, NotThere
    from kzconsumer.registry.sessions import short_session
    from kzconsumer_tools.cluster import apply, requests
    from kzconsumer_tools.cluster.reader import owning_groups

    topics = list(dict.fromkeys(arguments.topics))
    async with short_session(at.zookeeper) as session:
        cluster, shown = await apply.looked_at(session, at.zookeeper, topics)
        requests.require_deletable(cluster, shown, await owning_groups(session, topics))
        partitions = sum(each.partition_count for each in shown)
        if not arguments.execute:
            return Deleted(False, (), tuple(topics), partitions)
        requests.require_controller(cluster)
        await apply.ask(session, requests.deletion_requests(topics))
    left = await _waited(arguments, at, apply.deleting, set(topics))
    if not left and arguments.wait:
        for topic in topics:
            try:
                await _now(at, [topic])
            except NotThere:
                continue
            raise NotDone(
                f"the controller has taken the request away and left topic {topic}: it has delete.topic.enable=false"
            )
    return Deleted(True, tuple(sorted(left)), tuple(topics), partitions)


async def _now(at: Target, topics: Sequence[str]) -> list[TopicDescription]:
    from kzconsumer_tools.cluster.reader import read_topics

    return await read_topics(at.zookeeper, topics)


async def _waited(
    arguments: argparse.Namespace,
    at: Target,
    pending: Callable[[ZooKeeperSession, set[str]], Awaitable[set[str]]],
    asked: set[str],
) -> set[str]:
    """What is pending still. On a terminal its last line says how much that is."""
    import sys

    from kzconsumer_tools.cluster.apply import wait_until_done

    if not arguments.wait:
        return asked
    shown = sys.stderr.isatty()

    def told(left: int) -> None:
        if shown:
            print(f"\r\x1b[K{len(asked) - left} of {len(asked)} done", end="", file=sys.stderr, flush=True)

    try:
        return await wait_until_done(at.zookeeper, pending, asked, arguments.wait, told)
    finally:
        if shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _require(failed: Sequence[str], done: str) -> None:
    from kzconsumer.errors import NotDone

    if failed:
        raise NotDone(
            f"the controller has taken the request away and left undone: {', '.join(failed)} is not {done}; "
            "its log controller.log says why"
        )


def _keep(chosen: Path | None, changing: Sequence[Move]) -> Path:
    from datetime import UTC, datetime

    from kzconsumer_tools.cluster.requests import encode_reassignment
    from kzconsumer_tools.commands.execute_option import write_file

    path = chosen or Path(f"undo-reassign-{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}.json")
    write_file(path, encode_reassignment({(each.topic, each.partition): each.old for each in changing}) + b"\n")
    return path


def _of_file(path: Path) -> dict[tuple[str, int], tuple[int, ...]]:
    from kzconsumer.errors import NotDone
    from kzconsumer_tools.cluster.nodes import decode_requested
    from kzconsumer_tools.commands.execute_option import read_file

    try:
        return decode_requested(read_file(path))
    except ValueError as error:
        raise NotDone(f"{path}: not what kafka-reassign-partitions.sh takes: {error}") from None


def _carried_out(errand: Callable[..., Awaitable[T]], *given: object) -> T:
    """The answer; what the cluster would not do is an error like others."""
    import anyio

    from kzconsumer.errors import NotDone
    from kzconsumer.logs import setup
    from kzconsumer_tools.cluster.requests import Refused

    setup.for_one_answer()
    try:
        return anyio.run(errand, *given)
    except Refused as refused:
        raise NotDone(f"{refused}; nothing was changed") from None


def _answered(
    arguments: argparse.Namespace, answer: msgspec.Struct, pending: Sequence[str], table: Callable[[], str]
) -> int:
    """Exit status 1 when the time was over before it was done."""
    print(msgspec.json.encode(answer).decode() if arguments.output == "json" else table())
    return 1 if pending and arguments.wait else 0


def _move(text: str) -> tuple[tuple[str, int], tuple[int, ...]]:
    place, equals, brokers = text.rpartition("=")
    topic, _, number = place.rpartition(":")
    numbers = [number, *brokers.split(",")]
    if not equals or not topic or not all(each.isascii() and each.isdecimal() for each in numbers):
        raise argparse.ArgumentTypeError(f"{text!r} is not TOPIC:PARTITION=BROKER,BROKER such as orders:0=2,1")
    return (topic, int(number)), tuple(map(int, numbers[1:]))


def _seconds(text: str) -> float:
    if not (text.isascii() and text.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return float(text)
