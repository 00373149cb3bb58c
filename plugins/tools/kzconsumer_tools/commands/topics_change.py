"""`kzconsumer topics reassign | elect-preferred | delete`: requests to the controller.

With `--execute` the request is submitted, and the controller is waited for.
JSON has the fields of `Reassigned`, `Elected` and `Deleted` in `cluster.requests`.
"""

from __future__ import annotations

import argparse
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, TypeVar

from kzconsumer.cli.parser import whole_number
from kzconsumer.errors import NotDoneError, NotFoundError
from kzconsumer_tools.cluster import requests
from kzconsumer_tools.cluster.nodes import decode_requested
from kzconsumer_tools.cluster.requests import Deleted, Elected, Reassigned
from kzconsumer_tools.commands.answer import ask, show
from kzconsumer_tools.commands.cluster_option import ClusterOption, add_cluster_option, cluster_flags, cluster_option
from kzconsumer_tools.commands.execute_option import add_execute, read_file, write_undo
from kzconsumer_tools.commands.topic_option import chosen_topics, topic_scope
from kzconsumer_tools.tables.topics import deleted_table, elected_table, reassigned_table

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    from kzconsumer_tools.cluster.apply import Pending
    from kzconsumer_tools.cluster.description import TopicDescription

T = TypeVar("T", Reassigned, Elected, Deleted)

# Seconds that the controller is waited for; it continues afterwards.
WAIT = 300
# For a deletion by a controller of 0.8, which keeps the request for ever unless it has delete.topic.enable=true.
WAIT_OF_0_8 = 20


def add_actions(actions: _SubParsersAction[argparse.ArgumentParser]) -> None:
    reassigning = actions.add_parser(
        "reassign",
        help="move partitions to other brokers",
        description="Have the controller move partitions to other replicas; the first one is the preferred leader. "
        "The current replicas are written to an undo file first, in the format of kafka-reassign-partitions.sh.",
        examples=("orders:0=2,1 orders:1=1,2", "--file reassignment.json --execute"),
    )
    form = "such as orders:0=2,1: partition 0 on brokers 2 and 1"
    reassigning.add_argument("wanted", metavar="TOPIC:PARTITION=BROKERS", nargs="*", type=_replicas, help=form)
    reassigning.add_argument("--file", metavar="FILE", type=Path, help="or a file of kafka-reassign-partitions.sh")
    undo = "file for the current replicas; default: a new file in this directory, named in the output"
    electing = actions.add_parser(
        "elect-preferred",
        help="have partitions led by the first of their replicas",
        description="Have the controller make the first replica the leader, of the partitions where it is not.",
        examples=("", "orders:0,1 --execute"),
    )
    electing.add_argument("topics", metavar="TOPIC", nargs="*", type=topic_scope, help="or TOPIC:0,1; default: all")
    deleting = actions.add_parser(
        "delete",
        help="delete topics with all their records",
        description="Have the controller delete topics with all their records; this cannot be undone. Refused while a "
        "member of a group in ZooKeeper owns a partition of them.",
        examples=("old", "old older --execute --wait 60"),
    )
    deleting.add_argument("topics", metavar="TOPIC", nargs="+", help="to be deleted")
    for action, run in ((reassigning, run_reassign), (electing, run_elect), (deleting, run_delete)):
        add_execute(action)
        if action is reassigning:
            action.add_argument("--undo", metavar="FILE", type=Path, help=undo)
        seconds = "how long to wait until it is done; default: 300, for deletions by brokers of 0.8 20; 0: not at all"
        action.add_argument("--wait", metavar="SECONDS", type=whole_number("a number of seconds"), help=seconds)
        add_cluster_option(action)
        action.set_defaults(run=run)


def run_reassign(arguments: argparse.Namespace) -> int:
    at = cluster_option(arguments)
    if bool(arguments.wanted) == (arguments.file is not None):
        arguments.misused("give TOPIC:PARTITION=BROKERS (one or more), or --file FILE")
    wanted = _read_wanted(arguments.file) if arguments.file is not None else dict(arguments.wanted)
    if len(wanted) < len(arguments.wanted):
        arguments.misused("a partition is given twice")
    return _run(arguments, partial(reassigned_table, flags=cluster_flags(arguments)), _reassign, at, wanted)


async def _reassign(
    arguments: argparse.Namespace, at: ClusterOption, wanted: dict[tuple[str, int], tuple[int, ...]]
) -> Reassigned:
    from kzconsumer_tools.cluster import apply

    file = quote(str(arguments.file or "FILE"))
    async with at.access() as access:
        await access.require_controller_in_zookeeper(
            f"kafka-reassign-partitions.sh --execute --reassignment-json-file {file}"
        )
        topics = list(dict.fromkeys(topic for topic, _ in wanted))
        cluster, found = await apply.read_cluster_and_topics(access.session, at.zookeeper.connect, topics)
        partitions = requests.reassignments(cluster, found, wanted)
        changing = [each for each in partitions if each.changes]
        if not arguments.execute or not changing:
            return Reassigned(False, None, (), tuple(partitions))
        requests.require_controller(cluster)
        present = {(each.topic, each.partition): each.old for each in changing}
        undo = write_undo(arguments.undo, "reassign", requests.encode_reassignment(present) + b"\n", "json")
        await apply.submit(access.session, [requests.reassignment_request(changing)])
    left = await _wait(arguments, at, apply.moving, {f"{each.topic}-{each.partition}" for each in changing})
    if not left and arguments.wait:
        _require_done(requests.not_moved(await _read_again(at, topics), changing), "moved")
    return Reassigned(True, str(undo), tuple(sorted(left)), tuple(partitions))


def run_elect(arguments: argparse.Namespace) -> int:
    return _run(arguments, elected_table, _elect, cluster_option(arguments))


async def _elect(arguments: argparse.Namespace, at: ClusterOption) -> Elected:
    from kzconsumer_tools.cluster import apply

    scope = chosen_topics(arguments.topics)
    which = "--topic TOPIC --partition N" if scope is not None else "--all-topic-partitions"
    async with at.access() as access:
        await access.require_controller_in_zookeeper(f"kafka-leader-election.sh --election-type preferred {which}")
        names = list(scope) if scope is not None else None
        cluster, found = await apply.read_cluster_and_topics(access.session, at.zookeeper.connect, names)
        partitions = requests.elections(cluster, found, scope)
        electing = [each for each in partitions if each.reason is None]
        if not arguments.execute or not electing:
            return Elected(False, (), tuple(partitions))
        requests.require_controller(cluster)
        await apply.submit(access.session, [requests.election_request(electing)])
    left = await _wait(arguments, at, apply.electing, {f"{each.topic}-{each.partition}" for each in electing})
    if not left and arguments.wait:
        topics = list(dict.fromkeys(each.topic for each in electing))
        _require_done(requests.not_elected(await _read_again(at, topics), electing), "led by its preferred leader")
    return Elected(True, tuple(sorted(left)), tuple(partitions))


def run_delete(arguments: argparse.Namespace) -> int:
    return _run(arguments, deleted_table, _delete, cluster_option(arguments))


async def _delete(arguments: argparse.Namespace, at: ClusterOption) -> Deleted:
    from kzconsumer_tools.cluster import apply
    from kzconsumer_tools.cluster.reader import owning_groups

    topics = list(dict.fromkeys(arguments.topics))
    async with at.access() as access:
        await access.require_controller_in_zookeeper(f"kafka-topics.sh --delete --topic {','.join(topics)}")
        cluster, found = await apply.read_cluster_and_topics(access.session, at.zookeeper.connect, topics)
        requests.require_deletable(cluster, found, await owning_groups(access.session, topics))
        partitions = sum(each.partition_count for each in found)
        if arguments.wait is None and any(each.version is not None and each.version < 2 for each in cluster.brokers):
            arguments.wait = WAIT_OF_0_8
        if not arguments.execute:
            return Deleted(False, (), tuple(topics), partitions)
        requests.require_controller(cluster)
        await apply.submit(access.session, requests.deletion_requests(topics))
    left = await _wait(arguments, at, apply.deleting, set(topics))
    if not left and arguments.wait:
        for topic in topics:
            try:
                await _read_again(at, [topic])
            except NotFoundError:
                continue
            raise NotDoneError(
                f"the controller has removed the request and kept topic {topic}: it has delete.topic.enable=false"
            )
    return Deleted(True, tuple(sorted(left)), tuple(topics), partitions)


async def _read_again(at: ClusterOption, topics: Sequence[str]) -> list[TopicDescription]:
    from kzconsumer.registry.sessions import short_session
    from kzconsumer_tools.cluster.reader import topics_of

    async with short_session(at.zookeeper) as session:
        return await topics_of(session, topics)


async def _wait(arguments: argparse.Namespace, at: ClusterOption, pending: Pending, asked: set[str]) -> set[str]:
    """What is still pending after `--wait`."""
    from kzconsumer.cli.progress import progress
    from kzconsumer_tools.cluster.apply import wait_until_done

    if arguments.wait is None:
        arguments.wait = WAIT
    if not arguments.wait:
        return asked
    with progress("waiting for the controller") as show:

        def show_left(left: int) -> None:
            show(len(asked) - left, len(asked))

        return await wait_until_done(at.zookeeper, pending, asked, arguments.wait, show_left)


def _require_done(failed: Sequence[str], done: str) -> None:
    if failed:
        raise NotDoneError(
            f"the controller has removed the request, but {', '.join(failed)} is not {done}; see its controller.log"
        )


def _read_wanted(path: Path) -> dict[tuple[str, int], tuple[int, ...]]:
    try:
        return decode_requested(read_file(path))
    except ValueError as error:
        raise NotDoneError(f"{path}: not in the format of kafka-reassign-partitions.sh: {error}") from None


def _run(
    arguments: argparse.Namespace, table: Callable[[T], str], request: Callable[..., Awaitable[T]], *given: object
) -> int:
    """Exit status 1 if it was not done at the end of `--wait`."""
    try:
        result = ask(request, arguments, *given, what=None)
    except requests.Refused as refused:
        raise NotDoneError(f"{refused}; nothing was changed") from None
    return show(arguments, result, table, status=1 if result.pending and arguments.wait else 0)


def _replicas(text: str) -> tuple[tuple[str, int], tuple[int, ...]]:
    place, equals, brokers = text.rpartition("=")
    topic, _, number = place.rpartition(":")
    numbers = [number, *brokers.split(",")]
    if not equals or not topic or not all(each.isascii() and each.isdecimal() for each in numbers):
        raise argparse.ArgumentTypeError(f"{text!r} is not TOPIC:PARTITION=BROKER,BROKER such as orders:0=2,1")
    return (topic, int(number)), tuple(map(int, numbers[1:]))
