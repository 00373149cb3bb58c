"""`kzconsumer sink compact`: many small files of the destination made few, beside running members.

Owns the bar on standard error. Standard output is the answer, 80 columns or JSON with the fields of
`sinks.interface.Compacted`.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, TypeVar, cast

from kzconsumer.cli.configuration import add_config, layers_given

if TYPE_CHECKING:
    from argparse import _SubParsersAction
    from collections.abc import Callable

    from kzconsumer.settings.settings import Settings
    from kzconsumer.sinks.interface import Compactable, Compacted

T = TypeVar("T")
SIZE, GRACE = 128 << 20, 5.0


def add_arguments(actions: _SubParsersAction[argparse.ArgumentParser]) -> None:
    compact = actions.add_parser(
        "compact",
        help="write many small Parquet files as few, beside running members",
        description="Files of ranges that follow each other become one, with the same rows in the same order; the "
        "ledger stays as it is. A reader that meets the exchange fails and must read again: it never reads rows twice "
        "or too few. A plan first; --execute does it. Broken off, it is finished by the next one, or by the next "
        "member that starts.",
    )
    add_config(compact)
    compact.add_argument(
        "--target-size", metavar="SIZE", type=_size, default=SIZE, help="of the files to be made; default: 128MiB"
    )
    compact.add_argument(
        "--grace",
        metavar="TIME",
        type=_time,
        default=GRACE,
        help="how long readers that list the directory fail: longer than listing it takes; default: 5s",
    )
    compact.add_argument("--execute", action="store_true", help="do it")
    compact.add_argument("-o", "--output", choices=("table", "json"), default="table", help="default: table")
    compact.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    layers = layers_given(arguments)
    import anyio
    import msgspec

    from kzconsumer.cli.run import run_progress, unseen
    from kzconsumer.logs import setup
    from kzconsumer.settings.settings import Settings

    settings = Settings.of(layers)
    with layers.named(), run_progress(arguments.execute, "compact") as show:
        settings.require_daemon()
        setup.for_one_answer()
        done = anyio.run(_compact, settings, arguments, show or unseen)
    print(msgspec.json.encode(done).decode() if arguments.output == "json" else _text(done))
    return 0


async def _compact(settings: Settings, arguments: argparse.Namespace, show: Callable[[int, int], None]) -> Compacted:
    from kzconsumer.errors import PluginError
    from kzconsumer_tools.commands.sink_verify import accountable

    sink = await accountable(settings, settings.group.id)
    if not hasattr(sink, "compact"):
        raise PluginError(f'sink "{settings.require_daemon().plugin}" cannot compact what it has written')
    return await cast("Compactable", sink).compact(
        size=arguments.target_size, grace=arguments.grace, execute=arguments.execute, show=show
    )


def _text(done: Compacted) -> str:
    from kzconsumer_tools.tables.text import WIDTH, clip, columns, count, sentence

    lines = [clip(done.destination, WIDTH)]
    if done.directories:
        rows = [("FILES", "INTO", "MIB", "DIRECTORY")]
        rows += [
            (str(each.files), str(each.into), f"{each.size / (1 << 20):.1f}", each.directory)
            for each in done.directories
        ]
        lines += ["", *columns(rows, right={0, 1, 2}), ""]
    else:
        lines.append("Nothing to merge: no small files of ranges that follow each other.")
    if done.directories and not done.done:
        lines.append("Nothing was changed. Add --execute to do it: readers that meet it will fail.")
    elif done.directories:
        files, into = (sum(getattr(each, name) for each in done.directories) for name in ("files", "into"))
        lines.append(f"Done: {count(files, 'file')} are now {into}.")
    for each in done.left:
        lines += sentence(f"Left as they are: {each}")
    return "\n".join(lines)


def _size(text: str) -> int:
    from kzconsumer.settings.quantities import read_byte_size

    return _read(read_byte_size, text)


def _time(text: str) -> float:
    from kzconsumer.settings.quantities import read_duration

    return _read(read_duration, text)


def _read(read: Callable[[object], T], text: str) -> T:
    try:
        return read(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} {error}") from None
