"""`kzconsumer sink verify | replay | try`: what a sink has, what it would write again elsewhere, and what it would
make.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, cast

from msgspec.structs import replace

from kzconsumer.cli.arguments import add_config, layers_given, whole_number
from kzconsumer.display import count, plural
from kzconsumer.errors import KzConsumerError, NotDoneError, NotFoundError, PluginError, ZooKeeperUnreachableError
from kzconsumer.model import OffsetRange, RangeIdentity, TopicPartition
from kzconsumer.offsets.start_rules import resume
from kzconsumer.plugins import SINKS, load_chosen
from kzconsumer.registry import paths
from kzconsumer.registry.claim_record import decode_claim_record
from kzconsumer.settings.settings import Settings
from kzconsumer.settings.table_reader import faults_in
from kzconsumer_tools.commands.output_and_options import (
    EXIT_UNHEALTHY,
    TIME_HELP,
    add_output,
    add_topics,
    ask,
    chosen_topics,
    read_datetime,
    show,
)
from kzconsumer_tools.groups.group_nodes import GroupNodes
from kzconsumer_tools.node_changes import partition_of
from kzconsumer_tools.offsets.offset_changes import offset_in
from kzconsumer_tools.proof import GroupProgress, InLog, Planned, Proof

if TYPE_CHECKING:
    from argparse import _SubParsersAction
    from collections.abc import Callable, Collection

    from kzconsumer.sinks.interface import Accountable, Batch, Preview
    from kzconsumer_tools.offsets.prepare import Scope
    from kzconsumer_tools.replay import ReplayableSink, Replayed


# `kzconsumer sink replay`: write the records of a time range into another target, without the group.
#
# JSON has the fields of `replay.Replayed`.


def add_replay(actions: _SubParsersAction[argparse.ArgumentParser]) -> None:
    replay = actions.add_parser(
        "replay",
        help="write the records of a time range into another target, while the group may be running",
        description="Read the subscribed topics by time, without the group, and write through the same sink into "
        "another target. The group's offsets and target are not touched. It can be stopped and started again: records "
        "that the target has are skipped. Brokers from 0.10.1.",
        examples=("--config lake.toml --from 2026-01-31T12:00 --until 2026-01-31T13:00 --into lake-again",),
    )
    replay.add_argument("--from", dest="since", metavar="TIME", type=read_datetime, required=True, help=TIME_HELP)
    replay.add_argument(
        "--until", metavar="TIME", type=read_datetime, required=True, help="the same; records of that time are left out"
    )
    replay.add_argument("--into", metavar="TARGET", required=True, help="a directory, or for a database a table")
    add_topics(replay)
    add_config(replay)
    add_output(replay)
    replay.set_defaults(run=run_replay)


def run_replay(arguments: argparse.Namespace) -> int:
    layers = layers_given(arguments)
    if arguments.since >= arguments.until:
        arguments.misused("--from is not before --until")
    import anyio

    from kzconsumer.cli.arguments import progress
    from kzconsumer.logs import setup

    times = arguments.since, arguments.until
    with layers.named(), progress("replay") as show_progress:
        settings = _redirected(Settings.of(layers), arguments.into)
        setup.configure("warning", "auto")
        done = anyio.run(_replay, settings, times, chosen_topics(arguments.topic), show_progress)
    return show(arguments, done, _text)


def _redirected(settings: Settings, into: str) -> Settings:
    """The settings with the sink's other target. Raises PluginError if the sink cannot be redirected."""
    chosen = settings.require_daemon()
    plugin = load_chosen(SINKS, chosen.plugin, f"{settings.source}: [sink] plugin")
    elsewhere: Callable[[Mapping[str, object], str], dict[str, object]] | None = getattr(plugin, "elsewhere", None)
    if elsewhere is None:
        raise PluginError(f'sink "{chosen.plugin}" cannot be given another target')
    with faults_in(settings.source):
        options = elsewhere(chosen.options, into)
    return replace(settings, sink=replace(chosen, options=options))


async def _replay(
    settings: Settings, times: tuple[int, int], scope: Scope | None, show: Callable[[int, int], None]
) -> Replayed:
    from kzconsumer.fetcher.range_reader import range_reader
    from kzconsumer_tools.offsets.prepare import within
    from kzconsumer_tools.replay import alone, replay, safe_until

    # An owner of its own, so that it cannot write into the group's target.
    group = f"{settings.group.id} (replay)"
    async with range_reader(settings) as reader:
        topics = await reader.topics(settings.subscription)
        found = [TopicPartition(name, number) for name, topic in topics.items() for number in topic.partitions]
        partitions = [each for each in found if within(each, scope)]
        first, until = [await reader.at_time(partitions, at) for at in times]
        wanted = [OffsetRange(*each, first[each], until[each]) for each in partitions if first[each] < until[each]]
        incarnations = {name: topic.incarnation for name, topic in topics.items()}
        sink = cast("ReplayableSink", await accountable(settings, group, safe_until))
        with alone(settings.zookeeper.connect, group) as since:
            return await replay(reader, sink, wanted, incarnations, settings.batch, since, show)


def _text(done: Replayed) -> str:
    return (
        f"{done.destination}\n{plural(done.records, 'record')} written in {plural(done.ranges, 'range')}"
        f"{f', {count(done.rejected)} rejected by the sink' if done.rejected else ''}\n"
        f"{plural(done.partitions, 'partition')}, {plural(done.offsets, 'offset')}: "
        f"{count(done.there)} were there before"
    )


# `kzconsumer sink verify`: check the destination against the group's stored offsets and plans.
#
# JSON has the fields of `proof.Proof`.


def add_verify(actions: _SubParsersAction[argparse.ArgumentParser]) -> None:
    verify = actions.add_parser(
        "verify",
        help="check that the destination has what the group has consumed: no gap, no overlap, equal counts",
        description="Compare the destination (its ledger and its rows) with the group's stored offsets and plans. The "
        "group may be running. Changes nothing. Exit status 3 if there is a finding.",
        examples=("--config lake.toml", "--config lake.toml -o json"),
    )
    add_config(verify)
    add_output(verify)
    verify.set_defaults(run=run_verify)


def run_verify(arguments: argparse.Namespace) -> int:
    layers = layers_given(arguments)
    from kzconsumer_tools.tables.offset_tables import proof_table

    settings = Settings.of(layers)
    with layers.named():
        settings.require_daemon()
        proof = ask(verify, settings)
    return show(arguments, proof, proof_table, 0 if proof.healthy else EXIT_UNHEALTHY)


async def verify(settings: Settings) -> Proof:
    """Read the group, the destination, and the group again. Raises KzConsumerError."""
    from pathlib import Path

    from anyio import to_thread

    from kzconsumer.sinks.quarantine import kept_ranges
    from kzconsumer_tools.groups.cluster_access import read_nodes
    from kzconsumer_tools.proof import gaps, prove, unlisted

    group, aside = settings.group.id, settings.require_daemon().quarantine
    nodes = await read_nodes(settings, group)
    before = progress_of(nodes)
    sink = await accountable(settings, group)
    kept = await to_thread.run_sync(kept_ranges, Path(aside)) if aside is not None else []
    holdings = await sink.holdings(count_rows=True)
    after = progress_of(await read_nodes(settings, group))
    missing = gaps(before, holdings, kept, await lost(settings, sink, unlisted(before, holdings)))
    return prove(group, before, holdings, after, kept, await _in_log(settings, missing, incarnations(nodes)))


async def accountable(settings: Settings, group: str, safe_until: Callable[[], float] = lambda: 0.0) -> Accountable:
    """The settings' sink for `group`, not entered. Raises PluginError if it cannot list what it holds."""
    import anyio

    from kzconsumer.registry.cluster import LIMIT, cluster_identity
    from kzconsumer.sinks.capabilities import capabilities, configured_sink
    from kzconsumer.sinks.interface import SinkContext

    cluster = None
    with anyio.move_on_after(LIMIT):
        cluster = await cluster_identity(settings)
    if cluster is None:
        raise ZooKeeperUnreachableError(f"{settings.zookeeper.connect}: no broker has registered within {LIMIT:.0f} s")
    context = SinkContext(group=group, member="", cluster=cluster, safe_until=safe_until)
    accounts = capabilities(configured_sink(settings, context)).accounts
    if accounts is None:
        raise PluginError(f'sink "{settings.require_daemon().plugin}" cannot list what its destination holds')
    return accounts


async def lost(settings: Settings, sink: Accountable, unlisted: Sequence[RangeIdentity]) -> list[RangeIdentity]:
    """Those that the destination does not have; none if it may forget ranges. Raises SinkError."""
    from kzconsumer.sinks.capabilities import capabilities
    from kzconsumer.sinks.interface import Sink
    from kzconsumer.sinks.range_plans import destination_of

    destination = destination_of(settings.require_daemon().plugin, capabilities(cast(Sink, sink)))
    if not unlisted or destination is None or not destination.remembers:
        return []
    there = await destination.has(unlisted)
    return [each for each in unlisted if each not in there]


def progress_of(nodes: GroupNodes) -> dict[TopicPartition, GroupProgress]:
    """The stored offsets and plans. Raises NotDoneError for a claim record of an unknown format."""
    group = paths.GroupPaths(nodes.group)
    found = {}
    for path, node in nodes.claims.items():
        try:
            partition = partition_of(path)
            record = decode_claim_record(node.data)
        except ValueError as error:
            raise NotDoneError(f"{path}: {error}") from None
        planned = None
        if (plan := record.plan) is not None:
            incarnation = int(plan.incarnation, 16)
            identity = RangeIdentity(*partition, incarnation, plan.epoch, plan.first, plan.until)
            planned = Planned(identity, plan.records if plan.checksum else None, plan.fingerprint)
        offset = nodes.offsets.get(group.offset(partition))
        stored = resume(offset_in(offset.data) if offset is not None else None, record.committed_until)
        found[partition] = GroupProgress(
            int(record.incarnation, 16), record.epoch, stored, planned, record.last_written, record.fingerprint
        )
    return found


def incarnations(nodes: GroupNodes) -> dict[str, int]:
    """Topic -> incarnation, of the topics that exist and that the group has consumed."""
    return {name: topic.incarnation for name, topic in nodes.topics.items() if topic.incarnation is not None}


async def _in_log(
    settings: Settings, missing: Collection[RangeIdentity], topics: Mapping[str, int]
) -> dict[RangeIdentity, InLog]:
    """What the log has of the missing ranges; each is read up to the first record found."""
    from kzconsumer.fetcher.range_reader import range_reader

    found: dict[RangeIdentity, InLog] = dict.fromkeys(missing, "unknown")
    asked = [each for each in missing if topics.get(each.topic) == each.incarnation]
    for each in missing:
        if each not in asked:
            found[each] = "gone"  # with its topic
    if not asked:
        return found
    try:
        async with range_reader(settings) as reader:
            logs = await reader.logs({TopicPartition(each.topic, each.partition) for each in asked})
            for each in asked:
                start, end = logs[TopicPartition(each.topic, each.partition)]
                first, until = max(start, each.first), min(end, each.until)
                if first < until and await reader.any_record(each.topic, each.partition, first, until):
                    found[each] = "records"
                else:
                    found[each] = "none" if (first, until) == (each.first, each.until) else "gone"
    except KzConsumerError:
        pass  # those without an answer remain unknown
    return found


def add_sink(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    sink = subparsers.add_parser(
        "sink", help="verify what the destination holds, write a time range again, preview the columns"
    )
    actions = sink.add_subparsers(dest="action", required=True, metavar="ACTION")
    add_verify(actions)
    add_replay(actions)
    trying = actions.add_parser(
        "try",
        help="decode and select real records, and show what would be written",
        description="Read the newest records of the subscribed topics, decode and select them as the sink would, and "
        "show the result. Joins no group, and commits and publishes nothing. Exit status 1 if there are records "
        "that cannot be decoded.",
        examples=("--config lake.toml", "-n 10 --config lake.toml -o wide"),
    )
    add_config(trying)
    trying.add_argument(
        "-n",
        "--records",
        metavar="N",
        type=whole_number("a number of records, 1 to 100000", 1, 100_000),
        default=100,
        help="how many; default: 100",
    )
    add_output(trying)
    trying.set_defaults(run=run_try)


def run_try(arguments: argparse.Namespace) -> int:
    layers = layers_given(arguments)
    import anyio

    from kzconsumer.cli.arguments import progress
    from kzconsumer.logs import setup

    settings = Settings.of(layers)
    with layers.named(), progress("decoding records"):
        settings.require_daemon()
        setup.configure("warning", "auto")
        found = anyio.run(_preview, settings, arguments.records)
    return show_preview(arguments, found)


def show_preview(arguments: argparse.Namespace, found: Preview) -> int:
    """Prints it; returns the exit status. JSON lines and CSV have the rows, with the columns' names."""
    from kzconsumer_tools.tables.offset_tables import preview_table

    status = 1 if found.bad else 0
    if arguments.output in ("jsonl", "csv"):
        names = [name for name, _ in found.columns]
        return show(arguments, [dict(zip(names, row, strict=True)) for row in found.rows], str, status)
    width = shutil.get_terminal_size().columns
    table, wide = (partial(preview_table, width=each) for each in (width, sys.maxsize))
    return show(arguments, found, table, status, wide=wide)


async def _preview(settings: Settings, count: int) -> Preview:
    from kzconsumer.sinks.capabilities import capabilities, configured_sink
    from kzconsumer.sinks.interface import SinkContext

    context = SinkContext(group=settings.group.id, member="", cluster="", safe_until=lambda: 0.0)
    sink = configured_sink(settings, context)
    previews = capabilities(sink).previews
    if previews is None:
        raise PluginError(f'sink "{settings.require_daemon().plugin}" cannot be tried: it has no preview')
    return await previews.preview(await _newest(settings, count))


async def _newest(settings: Settings, count: int) -> Batch:
    """The newest records. Raises NotFoundError if there are none."""
    from kzconsumer.fetcher.range_reader import range_reader
    from kzconsumer.records.forms import ColumnRecords, Records
    from kzconsumer.sinks.interface import Batch, RangeData

    pieces: dict[TopicPartition, list[Records]] = {}
    async with range_reader(settings) as reader:
        ranges = last_offsets(await reader.logs(await reader.partitions(settings.subscription)), count)
        async for partition, batch in reader.read(ranges):
            pieces.setdefault(partition, []).append(ColumnRecords(batch))
    if not pieces:
        raise NotFoundError("the subscribed topics have no records to try")
    return Batch(
        tuple(
            RangeData(
                topic=each.topic,
                partition=each.partition,
                first=each.first,
                until=each.until,
                pieces=tuple(pieces.get(each.topic_partition, ())),
                incarnation=0,
                epoch=0,
            )
            for each in ranges
        )
    )


def last_offsets(logs: Mapping[TopicPartition, tuple[int, int]], count: int) -> list[OffsetRange]:
    """The last offsets of each log, `count` in all or as many as exist, evenly distributed; `logs` are (first, until).

    Offsets without a record count, too.
    """
    left = count
    ranges = []
    for number, (partition, (first, until)) in enumerate(sorted(logs.items(), key=lambda log: log[1][1] - log[1][0])):
        share = min(until - first, -(-left // (len(logs) - number)))
        left -= share
        if share > 0:
            ranges.append(OffsetRange(*partition, until - share, until))
    return sorted(ranges)
