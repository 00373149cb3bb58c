"""`kzconsumer sink replay`: the records of a time range written into another target, beside the live group.

Owns the bar on standard error. Standard output is the answer, text or JSON with the fields of `sinks.replay.Replayed`.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, cast

from kzconsumer.cli.configuration import add_config, layers_given
from kzconsumer_tools.commands.reset_options import read_datetime, topic_scope

if TYPE_CHECKING:
    from argparse import _SubParsersAction
    from collections.abc import Callable, Mapping

    from kzconsumer.settings.settings import Settings
    from kzconsumer_tools.offsets.prepare import Scope
    from kzconsumer_tools.sinks.replay import ReplayableSink, Replayed


def add_arguments(actions: _SubParsersAction[argparse.ArgumentParser]) -> None:
    replay = actions.add_parser(
        "replay",
        help="write the records of a time range into another target, beside the live group",
        description="Read the subscribed topics by time, without the group, and write through the same sink into "
        "another target. The group's offsets and target are not touched. Stop it and start it again as you like: what "
        "the target has is left out. Brokers from 0.10.1.",
    )
    time = "2026-01-31T12:00:00.000, UTC unless it has a zone"
    replay.add_argument("--from-time", metavar="TIME", type=read_datetime, required=True, help=time)
    replay.add_argument("--to-time", metavar="TIME", type=read_datetime, required=True, help="without that very moment")
    replay.add_argument("--into", metavar="TARGET", required=True, help="a directory, or for a database a table")
    one = "only this topic, or topic:0,1,2 for some of its partitions; may be given again"
    replay.add_argument("--topic", metavar="TOPIC", type=topic_scope, action="append", help=one)
    add_config(replay)
    replay.add_argument("-o", "--output", choices=("table", "json"), default="table", help="default: table")
    replay.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    layers = layers_given(arguments)
    if arguments.from_time >= arguments.to_time:
        arguments.misused("--from-time is not before --to-time")
    import anyio
    import msgspec

    from kzconsumer.cli.run import run_progress
    from kzconsumer.logs import setup
    from kzconsumer.settings.settings import Settings
    from kzconsumer_tools.commands.reset_options import topics_together

    times = arguments.from_time, arguments.to_time
    with layers.named(), run_progress(True, "replay") as show:
        settings = _redirected(Settings.of(layers), arguments.into)
        setup.configure("warning", "auto")
        done = anyio.run(_replay, settings, times, topics_together(arguments.topic), show or (lambda done, total: None))
    print(msgspec.json.encode(done).decode() if arguments.output == "json" else _text(done))
    return 0


def _redirected(settings: Settings, into: str) -> Settings:
    """The settings with the sink's other target. Raises PluginError for a sink that has only one."""
    import msgspec

    from kzconsumer.errors import PluginError
    from kzconsumer.plugins import SINKS, load_chosen
    from kzconsumer.settings.tables import faults_in

    chosen = settings.require_daemon()
    plugin = load_chosen(SINKS, chosen.plugin, f"{settings.source}: [sink] plugin")
    elsewhere: Callable[[Mapping[str, object], str], dict[str, object]] | None = getattr(plugin, "elsewhere", None)
    if elsewhere is None:
        raise PluginError(f'sink "{chosen.plugin}" cannot be given another target')
    with faults_in(settings.source):
        options = elsewhere(chosen.options, into)
    return msgspec.structs.replace(settings, sink=msgspec.structs.replace(chosen, options=options))


async def _replay(
    settings: Settings, times: tuple[int, int], scope: Scope | None, show: Callable[[int, int], None]
) -> Replayed:
    from kzconsumer.fetcher.range_reader import range_reader
    from kzconsumer.model import OffsetRange, TopicPartition
    from kzconsumer_tools.commands.sink_verify import accountable
    from kzconsumer_tools.offsets.prepare import within
    from kzconsumer_tools.sinks.replay import alone, replay, safe_until

    # Another owner than the group's: so neither writes where the other does.
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
    from kzconsumer_tools.tables.text import count

    lines = [
        f"{done.destination}",
        f"{count(done.records, 'record')} written in {count(done.ranges, 'range')}",
        f"{count(done.partitions, 'partition')}, {count(done.offsets, 'offset')}: {done.there} were there before",
    ]
    return "\n".join(lines)
