"""`kzconsumer sink replay`: write the records of a time range into another target, without the group.

JSON has the fields of `sinks.replay.Replayed`.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, cast

from msgspec.structs import replace

from kzconsumer.cli.configuration import add_config, layers_given
from kzconsumer.errors import PluginError
from kzconsumer.figures import count, plural
from kzconsumer.model import OffsetRange, TopicPartition
from kzconsumer.plugins import SINKS, load_chosen
from kzconsumer.settings.settings import Settings
from kzconsumer.settings.tables import faults_in
from kzconsumer_tools.commands.answer import add_output, show
from kzconsumer_tools.commands.reset_options import TIME_HELP, read_datetime
from kzconsumer_tools.commands.topic_option import add_topics, chosen_topics

if TYPE_CHECKING:
    from argparse import _SubParsersAction
    from collections.abc import Callable, Mapping

    from kzconsumer_tools.offsets.prepare import Scope
    from kzconsumer_tools.sinks.replay import ReplayableSink, Replayed


def add_arguments(actions: _SubParsersAction[argparse.ArgumentParser]) -> None:
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
    replay.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    layers = layers_given(arguments)
    if arguments.since >= arguments.until:
        arguments.misused("--from is not before --until")
    import anyio

    from kzconsumer.cli.progress import progress
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
    from kzconsumer_tools.commands.sink_verify import accountable
    from kzconsumer_tools.offsets.prepare import within
    from kzconsumer_tools.sinks.replay import alone, replay, safe_until

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
