"""`kzconsumer topics` and `kzconsumer cluster`: what ZooKeeper has, or the brokers of a cluster that has left it.

`topics list | describe`, `config get | set`, and requests to the controller. JSON of the first two has the fields of
`cluster.description.TopicDescription`.
"""

from __future__ import annotations

import argparse
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, TypeVar

from kzconsumer.cli.arguments import whole_number
from kzconsumer.errors import NotDoneError, NotFoundError
from kzconsumer_tools.cluster import requests
from kzconsumer_tools.cluster.description import decode_requested
from kzconsumer_tools.cluster.requests import (
    Configured,
    Deleted,
    Elected,
    OwnSettings,
    Reassigned,
    RequestRefused,
    require_brokers,
    require_usable,
)
from kzconsumer_tools.commands.cluster_option import (
    ClusterOption,
    add_cluster_option,
    cluster_flags,
    cluster_option,
    read_topics,
)
from kzconsumer_tools.commands.output_and_options import (
    add_execute,
    ask,
    chosen_topics,
    read_file,
    show,
    topic_scope,
    write_undo,
)
from kzconsumer_tools.node_changes import ChangeProgress
from kzconsumer_tools.tables.cluster_tables import (
    cluster_table,
    configured_table,
    deleted_table,
    describe_table,
    elected_table,
    reassigned_table,
    settings_table,
    topics_table,
)

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    from kzconsumer.zookeeper.operations import Create
    from kzconsumer_tools.cluster.cluster_reader import Pending
    from kzconsumer_tools.cluster.description import ClusterDescription, TopicDescription
    from kzconsumer_tools.groups.cluster_access import ClusterAccess


# `kzconsumer topics config get | set`: topics' own settings, and changing them with `--execute`.


def add_config_actions(actions: _SubParsersAction[argparse.ArgumentParser]) -> None:
    config = actions.add_parser("config", help="show and change topics' own settings")
    verbs = config.add_subparsers(dest="config_action", required=True, metavar="ACTION")
    getting = verbs.add_parser(
        "get",
        help="a topic's own settings",
        description="Show the settings that are set for the topics; for all others the brokers' defaults apply.",
        examples=("orders",),
    )
    getting.add_argument("topics", metavar="TOPIC", nargs="+", help="to be shown")
    setting = verbs.add_parser(
        "set",
        help="set or unset a topic's own settings",
        description="Set or unset a topic's own settings, and notify the brokers in the format of their version. A "
        "value that they cannot read is refused: brokers with such a value fail at their next start.",
        examples=("orders retention.ms=86400000", "orders --unset retention.ms --execute"),
    )
    setting.add_argument("topic", metavar="TOPIC", help="to be changed")
    setting.add_argument(
        "settings", metavar="NAME=VALUE", nargs="*", type=_setting, help="such as retention.ms=86400000"
    )
    unset = "remove the setting: the brokers' default applies; may be repeated"
    setting.add_argument("--unset", metavar="NAME", action="append", default=[], help=unset)
    add_execute(setting)
    for action, run in ((getting, run_get), (setting, run_set)):
        add_cluster_option(action)
        action.set_defaults(run=run)


def run_get(arguments: argparse.Namespace) -> int:
    at = cluster_option(arguments)
    found = ask(read_topics, at, arguments.topics)
    own = []
    for each in found:
        if each.config is None:
            raise NotDoneError("; ".join(f"{fault.path}: {fault.reason}" for fault in each.unreadable))
        own.append(OwnSettings(each.topic, dict(each.config)))
    return show(arguments, own, settings_table)


def run_set(arguments: argparse.Namespace) -> int:
    at = cluster_option(arguments)
    names = [*(name for name, _ in arguments.settings), *arguments.unset]
    if not names:
        arguments.misused("nothing to change: give NAME=VALUE, or --unset NAME")
    if len(set(names)) < len(names):
        arguments.misused("a setting is given twice")
    result = ask(_set, arguments, at)
    return show(arguments, result, lambda found: configured_table(found, cluster_flags(arguments)))


async def _set(arguments: argparse.Namespace, at: ClusterOption) -> Configured:
    from kzconsumer_tools.cluster.cluster_reader import read_cluster_and_topics, set_config

    add = [f"{name}={value}" for name, value in arguments.settings]
    tool = f"kafka-configs.sh --alter --entity-type topics --entity-name {arguments.topic}"
    tool += f" --add-config {','.join(add)}" * bool(add)
    tool += f" --delete-config {','.join(arguments.unset)}" * bool(arguments.unset)
    async with ChangeProgress("topic") as progress, at.access() as access:
        await access.require_controller_in_zookeeper(tool)
        session = access.session
        cluster, (topic,) = await read_cluster_and_topics(session, at.zookeeper.connect, [arguments.topic])
        try:
            require_usable(topic)
            versions = require_brokers(cluster)
            config = dict(topic.config or {})
            changes = requests.changed(config, dict(arguments.settings), arguments.unset, versions)
            notify = requests.notification(topic.topic, versions)
        except (RequestRefused, ValueError) as error:
            raise NotDoneError(f"{error}; nothing was changed") from None
        executed = arguments.execute and bool(changes)
        if executed:
            changed = {**config, **{each.name: each.new for each in changes}}
            kept = {name: value for name, value in changed.items() if value is not None}
            progress.begin(1)
            with progress.request(1):
                await set_config(session, topic.topic, config, kept, notify)
    return Configured(topic.topic, executed, tuple(changes))


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


# `kzconsumer topics reassign | elect-preferred | delete`: requests to the controller.
#
# With `--execute` the request is submitted, and the controller is waited for. JSON has the fields of `Reassigned`,
# `Elected` and `Deleted` in `cluster.requests`.

T = TypeVar("T", Reassigned, Elected, Deleted)

# Seconds that the controller is waited for; it continues afterwards.
WAIT = 300
# For a deletion by a controller of 0.8, which keeps the request for ever unless it has delete.topic.enable=true.
WAIT_OF_0_8 = 20


def add_changes(actions: _SubParsersAction[argparse.ArgumentParser]) -> None:
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
    progress: ChangeProgress,
    arguments: argparse.Namespace,
    at: ClusterOption,
    wanted: dict[tuple[str, int], tuple[int, ...]],
) -> Reassigned:
    from kzconsumer_tools.cluster import cluster_reader

    file = quote(str(arguments.file or "FILE"))
    async with at.access() as access:
        await access.require_controller_in_zookeeper(
            f"kafka-reassign-partitions.sh --execute --reassignment-json-file {file}"
        )
        topics = list(dict.fromkeys(topic for topic, _ in wanted))
        cluster, found = await cluster_reader.read_cluster_and_topics(access.session, at.zookeeper.connect, topics)
        partitions = requests.reassignments(cluster, found, wanted)
        changing = [each for each in partitions if each.changes]
        if not arguments.execute or not changing:
            return Reassigned(False, None, (), tuple(partitions))
        requests.require_controller(cluster)
        present = {(each.topic, each.partition): each.old for each in changing}
        undo = write_undo(arguments.undo, "reassign", requests.encode_reassignment(present) + b"\n", "json")
        await _submit(access, [requests.reassignment_request(changing)], progress, undo)
    left = await _wait(arguments, at, cluster_reader.moving, {f"{each.topic}-{each.partition}" for each in changing})
    if not left and arguments.wait:
        _require_done(requests.not_moved(await _read_again(at, topics), changing), "moved")
    return Reassigned(True, str(undo), tuple(sorted(left)), tuple(partitions))


def run_elect(arguments: argparse.Namespace) -> int:
    return _run(arguments, elected_table, _elect, cluster_option(arguments))


async def _elect(progress: ChangeProgress, arguments: argparse.Namespace, at: ClusterOption) -> Elected:
    from kzconsumer_tools.cluster import cluster_reader

    scope = chosen_topics(arguments.topics)
    which = "--topic TOPIC --partition N" if scope is not None else "--all-topic-partitions"
    async with at.access() as access:
        await access.require_controller_in_zookeeper(f"kafka-leader-election.sh --election-type preferred {which}")
        names = list(scope) if scope is not None else None
        cluster, found = await cluster_reader.read_cluster_and_topics(access.session, at.zookeeper.connect, names)
        partitions = requests.elections(cluster, found, scope)
        electing = [each for each in partitions if each.reason is None]
        if not arguments.execute or not electing:
            return Elected(False, (), tuple(partitions))
        requests.require_controller(cluster)
        await _submit(access, [requests.election_request(electing)], progress)
    left = await _wait(arguments, at, cluster_reader.electing, {f"{each.topic}-{each.partition}" for each in electing})
    if not left and arguments.wait:
        topics = list(dict.fromkeys(each.topic for each in electing))
        _require_done(requests.not_elected(await _read_again(at, topics), electing), "led by its preferred leader")
    return Elected(True, tuple(sorted(left)), tuple(partitions))


def run_delete(arguments: argparse.Namespace) -> int:
    return _run(arguments, deleted_table, _delete, cluster_option(arguments))


async def _delete(progress: ChangeProgress, arguments: argparse.Namespace, at: ClusterOption) -> Deleted:
    from kzconsumer_tools.cluster import cluster_reader
    from kzconsumer_tools.cluster.cluster_reader import owning_groups

    topics = list(dict.fromkeys(arguments.topics))
    async with at.access() as access:
        await access.require_controller_in_zookeeper(f"kafka-topics.sh --delete --topic {','.join(topics)}")
        cluster, found = await cluster_reader.read_cluster_and_topics(access.session, at.zookeeper.connect, topics)
        requests.require_deletable(cluster, found, await owning_groups(access.session, topics))
        partitions = sum(each.partition_count for each in found)
        if arguments.wait is None and any(each.version is not None and each.version < 2 for each in cluster.brokers):
            arguments.wait = WAIT_OF_0_8
        if not arguments.execute:
            return Deleted(False, (), tuple(topics), partitions)
        requests.require_controller(cluster)
        await _submit(access, requests.deletion_requests(topics), progress)
    left = await _wait(arguments, at, cluster_reader.deleting, set(topics))
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


async def _submit(
    access: ClusterAccess, wanted: Sequence[Create], progress: ChangeProgress, undo: Path | None = None
) -> None:
    from kzconsumer_tools.cluster.cluster_reader import submit

    progress.begin(len(wanted), undo)
    with progress.request(len(wanted)):
        await submit(access.session, wanted)


async def _read_again(at: ClusterOption, topics: Sequence[str]) -> list[TopicDescription]:
    from kzconsumer.registry.cluster import short_session
    from kzconsumer_tools.cluster.cluster_reader import topics_of

    async with short_session(at.zookeeper) as session:
        return await topics_of(session, topics)


async def _wait(arguments: argparse.Namespace, at: ClusterOption, pending: Pending, asked: set[str]) -> set[str]:
    """What is still pending after `--wait`."""
    from kzconsumer.cli.arguments import progress
    from kzconsumer_tools.cluster.cluster_reader import wait_until_done

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
        result = ask(_followed, request, arguments, *given, what=None)
    except requests.RequestRefused as refused:
        raise NotDoneError(f"{refused}; nothing was changed") from None
    return show(arguments, result, table, status=1 if result.pending and arguments.wait else 0)


async def _followed(request: Callable[..., Awaitable[T]], *given: object) -> T:
    async with ChangeProgress("request", "submitted") as progress:
        return await request(progress, *given)


def _replicas(text: str) -> tuple[tuple[str, int], tuple[int, ...]]:
    place, equals, brokers = text.rpartition("=")
    topic, _, number = place.rpartition(":")
    numbers = [number, *brokers.split(",")]
    if not equals or not topic or not all(each.isascii() and each.isdecimal() for each in numbers):
        raise argparse.ArgumentTypeError(f"{text!r} is not TOPIC:PARTITION=BROKER,BROKER such as orders:0=2,1")
    return (topic, int(number)), tuple(map(int, numbers[1:]))


def add_topics(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
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
    add_changes(actions)
    add_config_actions(actions)


def run_list(arguments: argparse.Namespace) -> int:
    at = cluster_option(arguments)
    return show(arguments, ask(read_topics, at, None), topics_table, wide=partial(topics_table, wide=True))


def run_describe(arguments: argparse.Namespace) -> int:
    at = cluster_option(arguments)
    found = ask(read_topics, at, arguments.topics)
    return show(arguments, found, describe_table, wide=partial(describe_table, wide=True))


# `kzconsumer cluster describe`: brokers, controller and pending requests, from ZooKeeper or the brokers.
#
# JSON has the fields of `cluster.description.ClusterDescription`.


def add_cluster(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    cluster = subparsers.add_parser("cluster", help="show brokers and controller")
    actions = cluster.add_subparsers(dest="action", required=True, metavar="ACTION")
    describing = actions.add_parser(
        "describe",
        help="brokers, controller and its pending requests",
        description="Show the live brokers, the controller and its epoch, and requests that the controller has not "
        "carried out yet: as ZooKeeper has them, or the brokers of a cluster that has left it. Changes nothing.",
        examples=("", "--zookeeper zk1:2181,zk2:2181/kafka -o json"),
    )
    add_cluster_option(describing)
    describing.set_defaults(run=run_cluster)


def run_cluster(arguments: argparse.Namespace) -> int:
    at = cluster_option(arguments)
    return show(arguments, ask(_read, at), cluster_table, wide=partial(cluster_table, wide=True))


async def _read(at: ClusterOption) -> ClusterDescription:
    async with at.access() as access:
        return await access.cluster()
