"""`kzconsumer lag`: how far a group is behind, once or again and again.

Owns no state, changes nothing. Standard output is the answer: a table of 80 columns, or JSON with the fields of
`group.lag` (with --watch an object a line).
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from kzconsumer_tools.commands.cluster_option import Target, add_group, add_storage, add_target, required_group, target
from kzconsumer_tools.commands.reset_options import topic_scope

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    from kzconsumer_tools.groups.lag import GroupLag
    from kzconsumer_tools.offsets.prepare import Scope

_CLEAR = "\x1b[H\x1b[2J"


def add_arguments(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    lag = subparsers.add_parser(
        "lag",
        help="how far a group is behind, in records and in seconds",
        description="Show how far each partition's stored offset is behind the end of its log: in offsets, and in "
        "seconds since the next record to be read was written, where brokers know (0.10 on). Nothing is changed.",
    )
    add_group(lag)
    one = "only this topic, or topic:0,1,2 for some of its partitions; may be given again"
    lag.add_argument("--topic", metavar="TOPIC", type=topic_scope, action="append", help=one)
    lag.add_argument("--watch", action="store_true", help="go on until a signal ends it")
    lag.add_argument("--interval", metavar="SECONDS", type=_interval, default=5.0, help="between two looks (default 5)")
    add_storage(lag)
    add_target(lag)
    lag.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    at = target(arguments)
    group = required_group(arguments, at)

    import anyio

    from kzconsumer.logs import setup
    from kzconsumer_tools.commands.reset_options import topics_together

    setup.for_one_answer()
    anyio.run(_run, arguments, at, group, topics_together(arguments.topic))
    return 0


async def _run(arguments: argparse.Namespace, at: Target, group: str, scope: Scope | None) -> None:
    import sys

    import anyio
    import msgspec

    from kzconsumer_tools.tables.groups import lag_table

    terminal = arguments.watch and arguments.output == "table" and sys.stdout.isatty()
    while True:
        found = await look(at, group, scope)
        answer = msgspec.json.encode(found).decode() if arguments.output == "json" else lag_table(found)
        print((_CLEAR if terminal else "") + answer, flush=True)
        if not arguments.watch:
            return
        await anyio.sleep(arguments.interval)


async def look(at: Target, group: str, scope: Scope | None) -> GroupLag:
    """One look at the group and its logs."""
    import time

    from kzconsumer_tools.groups.lag import behind, group_lag, partitions_of
    from kzconsumer_tools.groups.reader import nodes_of, require_group
    from kzconsumer_tools.offsets.prepare import scoped, within
    from kzconsumer_tools.offsets.view import see

    async with at.outside() as outside:
        await require_group(outside.session, at.zookeeper.connect, group)
        seen = await see(outside, await nodes_of(outside.session, group), at.storage)
        nodes, known = seen.nodes, seen.known
        partitions = [each for each in partitions_of(known) if within(each, scope)]
        if scope is not None and not partitions:
            await scoped(outside, nodes, scope)
        logs = await outside.known_logs([each for each in partitions if each in known.existing])
        written = await outside.written(behind(known, logs))
        return group_lag(group, known, partitions, logs, written, round(time.time() * 1000))


def _interval(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.1 <= seconds <= 86_400:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return seconds
