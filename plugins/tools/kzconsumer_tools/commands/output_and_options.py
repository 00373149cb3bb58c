"""The frame of most verbs: run one request, print its result as a table, as JSON or as rows; and options they share."""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec

from kzconsumer.cli.arguments import whole_number
from kzconsumer.display import all_printable, printable
from kzconsumer.durable_files import sync_directory, write_new
from kzconsumer.errors import NotDoneError, OutputError
from kzconsumer.lag.totals import Verdict
from kzconsumer.settings.value_readers import first_millisecond, read_topic

T = TypeVar("T")

EXIT_UNHEALTHY = 3
EXIT_NOT_EXAMINED = 4
EXIT_OF: Mapping[Verdict, int] = MappingProxyType(
    {"healthy": 0, "unhealthy": EXIT_UNHEALTHY, "not examined": EXIT_NOT_EXAMINED}
)


def add_output(action: argparse.ArgumentParser) -> None:
    action.add_argument(
        "-o",
        "--output",
        choices=("table", "wide", "json", "jsonl", "csv"),
        default="table",
        help="default: table; wide: with more columns, where there are more; jsonl: a line for each row, with the time",
    )


def ask(request: Callable[..., Awaitable[T]], *arguments: Any, what: str | None = "waiting for the cluster") -> T:
    """Run `request` to its end; only errors are logged, as lines on standard error. `what` None shows no progress."""
    import anyio

    from kzconsumer.cli.arguments import progress
    from kzconsumer.logs import setup

    setup.for_one_answer()
    with progress(what) if what is not None else nullcontext():
        return anyio.run(request, *arguments)


def show(
    arguments: argparse.Namespace,
    result: T,
    table: Callable[[T], str],
    status: int = 0,
    *,
    wide: Callable[[T], str] | None = None,
) -> int:
    """Print the result in the form of `--output`; returns `status`.

    Raises OutputError if it cannot be written, with what the result says that was changed.
    """
    text = as_text(arguments, result, table, wide)
    try:
        put(text)
    except (OutputError, BrokenPipeError) as error:
        if not getattr(result, "executed", False):
            raise
        why = error if isinstance(error, OutputError) else f"standard output: {error.strerror}"
        undo = getattr(result, "undo", None)
        how = f"; the undo file is {undo}" if undo is not None else ""
        raise OutputError(f"{why}; the changes were made{how}") from None
    return status


def put(text: str) -> None:
    """Print lines; of no rows, nothing: an empty line is no JSON."""
    print(text, end="\n" if text else "", flush=True)


def as_text(
    arguments: argparse.Namespace, result: T, table: Callable[[T], str], wide: Callable[[T], str] | None = None
) -> str:
    """`wide` is the table with more columns; None: there are no more.

    What is not printable in texts of others is escaped in tables, in JSON as JSON does, and in CSV on a terminal.
    """
    match arguments.output:
        case "json":
            return _json(result)
        case "jsonl":
            return "\n".join(_json({"at": datetime.now(UTC), **row}) for row in rows(result))
        case "csv":
            text = _csv(rows(result))
            return printable_lines(text) if sys.stdout.isatty() else text
        case "wide" if wide is not None:
            return wide(all_printable(result))
    return table(all_printable(result))


def _json(value: object) -> str:
    """JSON of printable characters only."""
    text = msgspec.json.encode(value).decode()
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else json.dumps(each)[1:-1] for each in text)


def printable_lines(text: str) -> str:
    """For data that is exact in a file."""
    return "\n".join(map(printable, text.split("\n")))


def rows(result: object) -> list[dict[str, Any]]:
    """The items of a list, the partitions of a group, each with the group, or the result as the only row."""
    whole = msgspec.to_builtins(result)
    if isinstance(whole, list | tuple):
        return list(whole)
    partitions = whole.get("partitions")
    if not isinstance(partitions, list | tuple):
        return [whole]
    group = {key: whole[key] for key in ("group", "at") if key in whole}
    return [group | each for each in partitions]


def _csv(found: list[dict[str, Any]]) -> str:
    """With a header; lists, objects and booleans are JSON, unknown values empty."""
    import csv
    import io

    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([list(found[0]), *([_cell(value) for value in row.values()] for row in found)] if found else [])
    return text.getvalue().rstrip("\n")


def _cell(value: object) -> object:
    structured = isinstance(value, list | tuple | dict | bool)
    return msgspec.json.encode(value).decode() if structured else value


# `--execute`, `--undo` and `--republish` of verbs that change something, and the files that they write and read.


def add_execute(action: argparse.ArgumentParser) -> None:
    action.add_argument("--execute", action="store_true", help="do it; without it the changes are only shown")


def add_execute_and_undo(action: argparse.ArgumentParser) -> None:
    add_execute(action)
    undo = "file for the current content of the nodes; default: a new file in this directory, named in the output"
    action.add_argument("--undo", metavar="FILE", type=Path, help=undo)


def add_change_of_offsets(action: argparse.ArgumentParser, condition: str = "") -> None:
    """These two and `--republish`, to which `condition` says when it counts."""
    add_execute_and_undo(action)
    help = f"{condition}allow records to be written to a replayable sink's destination again"
    action.add_argument("--republish", action="store_true", help=help)


def write_undo(chosen: Path | None, name: str, content: bytes, suffix: str = "jsonl") -> Path:
    """Write the undo file, by default under a new name with `name` in it.

    Raises NotDoneError if it cannot be written.
    """
    path = chosen or Path(f"undo-{name}-{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}.{suffix}")
    write_file(path, content)
    return path


def write_file(path: Path, content: bytes) -> None:
    """Write a new file, durable on return. Raises NotDoneError if it exists or cannot be written."""
    try:
        write_new(path, content)
        sync_directory(path.parent)
    except OSError as error:
        why = f"{path}: cannot be written ({error.strerror})"
        raise NotDoneError(f"{why}; nothing was changed: name another file") from None


def read_file(path: Path) -> bytes:
    """Raises NotDoneError if the file cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise NotDoneError(f"{path}: cannot be read: {error.strerror}") from None


# The options of `offsets reset`, with the names and formats of `kafka-consumer-groups.sh --reset-offsets` (2.8).

_DURATION = re.compile(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?", re.ASCII)
_SECONDS = (86_400, 3_600, 60, 1)
TIME_HELP = "2026-01-31T12:00:00.000, UTC unless it has a zone"


def add_reset_options(action: argparse.ArgumentParser) -> None:
    to = action.add_mutually_exclusive_group(required=True)
    to.add_argument("--to-earliest", action="store_true", help="the start of the log")
    to.add_argument("--to-latest", action="store_true", help="the end of the log")
    to.add_argument("--to-current", action="store_true", help="the stored offset, moved into the log if it is outside")
    to.add_argument("--to-offset", metavar="N", type=whole_number("an offset"), help="the next record to be read")
    to.add_argument("--shift-by", metavar="N", type=_shift, help="N offsets forward, or back if negative")
    to.add_argument("--to-datetime", metavar="TIME", type=read_datetime, help=TIME_HELP)
    to.add_argument("--by-duration", metavar="PnDTnHnMnS", type=_duration, help="this long ago, such as PT1H30M")
    to.add_argument("--from-file", metavar="FILE", type=Path, help="topic,partition,offset on each line, or any export")


def _shift(text: str) -> int:
    if not re.fullmatch(r"[+-]?[0-9]+", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of offsets such as 100 or -100")
    return int(text)


def read_datetime(text: str) -> int:
    """Milliseconds since 1970."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time such as 2026-01-31T12:00:00.000") from None
    try:
        return first_millisecond(at if at.tzinfo else at.replace(tzinfo=UTC))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} {error}") from None


def _duration(text: str) -> int:
    match = _DURATION.fullmatch(text)
    if match is None or not any(match.groups()):
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration such as PT1H30M or P7D")
    parts = zip(match.groups(), _SECONDS, strict=True)
    duration = sum(float(number) * seconds for number, seconds in parts if number)
    if duration > time.time():
        raise argparse.ArgumentTypeError(f"{text!r} ago is before 1970, and brokers look up no such time")
    return round(duration * 1000)


# `--topic TOPIC` and `--topic TOPIC:0,1,2`: which topics and partitions a verb is about.


def add_topics(action: argparse.ArgumentParser) -> None:
    help = "only this topic, or TOPIC:0,1,2 for some of its partitions; may be repeated"
    action.add_argument("--topic", metavar="TOPIC", type=topic_scope, action="append", help=help)


def topic_scope(text: str) -> tuple[str, tuple[int, ...] | None]:
    topic, colon, numbers = text.partition(":")
    try:
        read_topic(topic)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{topic!r} {error}") from None
    if not colon:
        return topic, None
    parts = numbers.split(",")
    if not all(part.isascii() and part.isdecimal() for part in parts):
        raise argparse.ArgumentTypeError(f"{numbers!r} is not a list of partitions such as 0,1,2")
    return topic, tuple(int(part) for part in parts)


def chosen_topics(given: Iterable[tuple[str, tuple[int, ...] | None]] | None) -> dict[str, set[int] | None] | None:
    """Topic -> partitions (None: all) of all `topic_scope` values together; None if there are none."""
    scope: dict[str, set[int] | None] = {}
    for topic, numbers in given or ():
        known = scope.setdefault(topic, set())
        scope[topic] = None if numbers is None or known is None else known.union(numbers)
    return scope or None


# `--include REGEX` and `--exclude REGEX`: which groups a verb is about, by their whole names.


def add_group_names(action: argparse.ArgumentParser) -> None:
    for flag, what in (("--include", "only groups whose whole name matches"), ("--exclude", "no groups that match")):
        action.add_argument(flag, metavar="REGEX", type=_expression, help=what)


def wanted_groups(arguments: argparse.Namespace) -> Callable[[str], bool]:
    include, exclude = arguments.include, arguments.exclude

    def wanted(group: str) -> bool:
        return (include is None or bool(include.fullmatch(group))) and not (exclude and exclude.fullmatch(group))

    return wanted


def _expression(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a regular expression: {error}") from None
