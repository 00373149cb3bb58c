"""The frame of most verbs: run one request, print its result as a table, as JSON or as rows."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec

from kzconsumer.errors import OutputError
from kzconsumer.printable import all_printable, printable

T = TypeVar("T")

EXIT_UNHEALTHY = 3
EXIT_NOT_EXAMINED = 4


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

    from kzconsumer.cli.progress import progress
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
        print(text, flush=True)
    except (OutputError, BrokenPipeError) as error:
        if not getattr(result, "executed", False):
            raise
        why = error if isinstance(error, OutputError) else f"standard output: {error.strerror}"
        undo = getattr(result, "undo", None)
        how = f"; the undo file is {undo}" if undo is not None else ""
        raise OutputError(f"{why}; the changes were made{how}") from None
    return status


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
