"""Building blocks of all tables: columns, sentences, number ranges.

Names and numbers are never cut, so that rows can be distinguished and copied; sentences are wrapped.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from shlex import quote
from textwrap import wrap

WIDTH = 80


def columns(rows: Sequence[tuple[str, ...]], right: Collection[int], wide: bool = True, more: int = 0) -> Iterator[str]:
    """The rows as lines, with the columns of `right` aligned right; the last `more` ones only in a wide table."""
    if not wide:
        rows = [row[: len(row) - more] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)][:-1]
    for *cells, last in rows:
        shown = [
            cell.rjust(w) if n in right else cell.ljust(w)
            for n, (cell, w) in enumerate(zip(cells, widths, strict=True))
        ]
        yield "".join(f"{cell}  " for cell in shown) + last


def clip(text: str, width: int) -> str:
    """For screens of a fixed size: long names are cut in the middle, since they differ at their ends."""
    if len(text) <= width:
        return text
    tail = (width - 1) // 2
    return f"{text[: width - 1 - tail]}…{text[-tail:]}"


def dash(value: float | None) -> str:
    """An offset or id, or `-` if it is unknown."""
    return "-" if value is None else str(value)


def capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def sentence(text: str) -> list[str]:
    """The text in lines; names are not broken, so that they can be copied."""
    return wrap(text, WIDTH, break_long_words=False, break_on_hyphens=False)


def short_thread(thread: str | None, names: Mapping[str, str]) -> str:
    """`m1-0` for stream 0 of the consumer id with the name m1, `m1` for the member without stream; `-` for None."""
    if thread is None:
        return "-"
    if thread in names:
        return names[thread]
    consumer, _, number = thread.rpartition("-")
    return f"{names[consumer]}-{number}" if consumer in names else thread


def runs(numbers: Sequence[int]) -> str:
    """Ascending numbers with consecutive ones joined: `0-3, 7`."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and spans[-1][1] == number - 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)


def next_step_line(executed: bool, undo: str | None, verb: str, flags: str, changes: int) -> str:
    """The last line of a change: how to execute it, or the complete command that undoes it."""
    if not changes:
        return "Nothing to change."
    if not executed:
        return "Nothing was changed. Add --execute to do it; an undo file is written first."
    return f"Done. To undo: kzconsumer {verb} {quote(undo or '')} --execute {flags}"
