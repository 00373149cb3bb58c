"""What the tables of the command line share: columns, short names, long names cut, in 80 columns.

Pure. Used by the modules `*_table`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from shlex import quote
from textwrap import wrap

WIDTH = 80
_LONGEST_THREAD = 16


def columns(rows: Sequence[tuple[str, ...]], right: Collection[int]) -> Iterator[str]:
    """The rows as lines, the columns of `right` set to the right. The last column takes what is left of the line."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)][:-1]
    for *cells, last in rows:
        shown = [
            cell.rjust(w) if n in right else cell.ljust(w)
            for n, (cell, w) in enumerate(zip(cells, widths, strict=True))
        ]
        line = "".join(f"{cell}  " for cell in shown)
        yield line + clip(last, WIDTH - len(line))


def clip(text: str, width: int) -> str:
    """Long names are cut in the middle: they differ at their ends."""
    if len(text) <= width:
        return text
    tail = (width - 1) // 2
    return f"{text[: width - 1 - tail]}…{text[-tail:]}"


def dash(value: float | None) -> str:
    """What is not known is `-`, never 0."""
    return "-" if value is None else str(value)


def sentence(text: str) -> list[str]:
    """Its lines; names are never broken, for they are to be copied."""
    return wrap(text, WIDTH, break_long_words=False, break_on_hyphens=False)


def count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def short_thread(thread: str | None, names: Mapping[str, str]) -> str:
    """`m1-0` for stream 0 of the member whose consumer id has the name m1; `-` for none."""
    if thread is None:
        return "-"
    consumer, _, number = thread.rpartition("-")
    return f"{names[consumer]}-{number}" if consumer in names else clip(thread, _LONGEST_THREAD)


def runs(numbers: Sequence[int]) -> str:
    """Ascending numbers, those that follow each other as one: `0-3, 7`."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and spans[-1][1] == number - 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)


def ending(executed: bool, undo: str | None, how_to_undo: str, where: str, changes: int) -> str:
    """The last line of the answer; `where` is the option that says where, so that the command can be copied."""
    if not changes:
        return "Nothing to change."
    if not executed:
        return "Nothing was changed. Add --execute to do it; an undo file is written first."
    return f"Done. To undo: kzconsumer {how_to_undo} {quote(undo or '')} --execute {where}"
