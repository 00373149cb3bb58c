"""`kzconsumer sink verify | replay | try`: the parsers, and `try`, which shows what the sink would write."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from kzconsumer.cli.configuration import add_config, layers_given
from kzconsumer.cli.parser import whole_number
from kzconsumer.errors import NotFoundError, PluginError
from kzconsumer.model import OffsetRange, TopicPartition
from kzconsumer.settings.settings import Settings
from kzconsumer_tools.commands import sink_replay, sink_verify
from kzconsumer_tools.commands.answer import add_output, show

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    from kzconsumer.sinks.interface import Batch
    from kzconsumer.sinks.reports import Preview


def add_arguments(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    sink = subparsers.add_parser(
        "sink", help="verify what the destination holds, write a time range again, preview the columns"
    )
    actions = sink.add_subparsers(dest="action", required=True, metavar="ACTION")
    sink_verify.add_arguments(actions)
    sink_replay.add_arguments(actions)
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

    from kzconsumer.cli.progress import progress
    from kzconsumer.logs import setup

    settings = Settings.of(layers)
    with layers.named(), progress("decoding records"):
        settings.require_daemon()
        setup.configure("warning", "auto")
        found = anyio.run(_preview, settings, arguments.records)
    return show_preview(arguments, found)


def show_preview(arguments: argparse.Namespace, found: Preview) -> int:
    """Prints it; returns the exit status. JSON lines and CSV have the rows, with the columns' names."""
    from kzconsumer_tools.tables.sink import preview_table

    status = 1 if found.bad else 0
    if arguments.output in ("jsonl", "csv"):
        names = [name for name, _ in found.columns]
        return show(arguments, [dict(zip(names, row, strict=True)) for row in found.rows], str, status)
    width = shutil.get_terminal_size().columns
    table, wide = (partial(preview_table, width=each) for each in (width, sys.maxsize))
    return show(arguments, found, table, status, wide=wide)


async def _preview(settings: Settings, count: int) -> Preview:
    from kzconsumer.sinks.capabilities import capabilities
    from kzconsumer.sinks.configured import configured_sink
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
