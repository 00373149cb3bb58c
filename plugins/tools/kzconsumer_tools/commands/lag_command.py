"""`kzconsumer lag`: how far a group is behind, once or at intervals.

JSON has the fields of `groups.group_lag.GroupLag`; with `--watch`, one object per line.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from kzconsumer.cli.arguments import seconds
from kzconsumer.lag.partition import FAULTS, UNASKED
from kzconsumer_tools.commands.cluster_option import (
    ClusterOption,
    add_cluster_option,
    add_group,
    add_storage,
    cluster_option,
    required_group,
)
from kzconsumer_tools.commands.output_and_options import (
    EXIT_NOT_EXAMINED,
    EXIT_OF,
    EXIT_UNHEALTHY,
    add_group_names,
    add_topics,
    as_text,
    ask,
    chosen_topics,
    put,
    show,
    wanted_groups,
)
from kzconsumer_tools.groups.advice import examined
from kzconsumer_tools.groups.diagnosis import not_asked, of_progress
from kzconsumer_tools.groups.group_lag import (
    GroupLag,
    group_lag,
    next_offsets,
    partition_lags,
    partitions_of,
    standing_of,
)
from kzconsumer_tools.tables.group_tables import lag_table, list_table

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    from kzconsumer_tools.offsets.prepare import Scope


_CLEAR = "\x1b[H\x1b[2J"
#: Seconds between two outputs of `--watch`.
_PAUSE = 5.0


def add_lag(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    lag = subparsers.add_parser(
        "lag",
        help="how far a group is behind, in records and in seconds",
        description="Show how far each partition's stored offset is behind the end of its log: in offsets, and in "
        "seconds since the next record to be read was written, if the brokers store times (0.10 on). Changes nothing. "
        "Exit status 3 if partitions stand still or have no leader, or a stored offset is of no use; 4 if the end of a "
        "log, or a group, cannot be read.",
        examples=("orders", "orders --topic orders:0,1 --watch", "--all", "--config orders.toml -o json"),
    )
    add_group(lag)
    add_topics(lag)
    lag.add_argument("--watch", action="store_true", help="repeat until interrupted")
    lag.add_argument("--interval", metavar="SECONDS", type=seconds, help=f"of --watch; default: {_PAUSE:g}")
    lag.add_argument("--all", action="store_true", dest="every", help="all groups, the one furthest behind first")
    lag.add_argument("--without-members", action="store_true", help="of --all: only groups that nobody reads")
    add_group_names(lag)
    add_storage(lag)
    add_cluster_option(lag)
    lag.set_defaults(run=run_lag)


def run_lag(arguments: argparse.Namespace) -> int:
    at = cluster_option(arguments)
    if arguments.every:
        return _show_all(arguments, at)
    if arguments.interval is not None and not arguments.watch:
        arguments.misused("--interval is of --watch; give it too")
    if arguments.include or arguments.exclude or arguments.without_members:
        arguments.misused("--include, --exclude and --without-members choose groups of --all; give it too")
    what = None if arguments.watch else "reading the lag"
    group = required_group(arguments, at, "GROUP, --all, or --config FILE")
    return ask(_show, arguments, at, group, chosen_topics(arguments.topic), what=what)


def _show_all(arguments: argparse.Namespace, at: ClusterOption) -> int:
    from kzconsumer_tools.commands.groups_commands import overview
    from kzconsumer_tools.groups.group_lag import worst_first

    of_one = (arguments.group, arguments.topic, arguments.watch or None, arguments.interval, arguments.storage)
    if any(each is not None for each in of_one):
        options = "GROUP, --topic, --watch, --interval and --storage"
        arguments.misused(f"--all is about all groups, once, by their offsets in ZooKeeper: give it without {options}")
    found = worst_first(overview(at, wanted_groups(arguments)))
    if arguments.without_members:
        found = [each for each in found if not each.members]
    stands = any(each.stalled or FAULTS.intersection(each.unknown) for each in found)
    unasked = any(each.not_read or each.foreign or UNASKED.intersection(each.unknown) for each in found)
    status = EXIT_UNHEALTHY if stands else EXIT_NOT_EXAMINED if unasked else 0
    listed = partial(list_table, chosen=bool(arguments.include or arguments.exclude or arguments.without_members))
    return show(arguments, found, listed, status, wide=partial(listed, wide=True))


async def _show(arguments: argparse.Namespace, at: ClusterOption, group: str, scope: Scope | None) -> int:
    import sys

    import anyio

    terminal = arguments.watch and arguments.output in ("table", "wide") and sys.stdout.isatty()
    while True:
        found = await read_lag(at, group, scope)
        text = as_text(arguments, found, lag_table, partial(lag_table, wide=True))
        put((_CLEAR if terminal else "") + text)
        if not arguments.watch:
            return EXIT_OF[found.health]
        await anyio.sleep(arguments.interval or _PAUSE)


async def read_lag(at: ClusterOption, group: str, scope: Scope | None) -> GroupLag:
    """The lag, and what is known of the group's progress."""
    import time

    from kzconsumer_tools.groups.group_reader import require_group
    from kzconsumer_tools.offsets.prepare import partitions_in, read_view, within

    async with at.access() as access:
        await require_group(access.session, at.zookeeper.connect, group)
        view = await read_view(access, await access.nodes(group), at.storage)
        partitions = [each for each in partitions_of(view.facts) if within(each, scope)]
        if scope is not None and not partitions:
            await partitions_in(access, view.nodes, scope)  # raises NotFoundError for a name that does not exist
        facts = view.facts
        logs = await access.known_logs([each for each in partitions if not facts.gone(each)])
        read_at, leaders = time.time(), access.leaders()
        written = await access.written(next_offsets(facts, logs))
        lags = partition_lags(facts, partitions, logs, written, read_at)
        found = group_lag(group, facts, lags, logs, read_at, leaders, view.nodes.foreign)
        standing = standing_of(view.nodes, facts, lags, read_at)
        symptoms = sorted(of_progress(view.nodes, facts, logs, standing))
        progress = examined(group, symptoms, not_asked(logs, standing, view.nodes, facts))
        return replace(found, health=progress.health, findings=progress.findings, not_asked=progress.not_asked)
