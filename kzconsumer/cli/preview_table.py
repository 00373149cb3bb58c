"""A sink's preview as a table that fits the terminal. Pure; `sink` prints it."""

from __future__ import annotations

import json
from collections.abc import Sequence

from kzconsumer.cli.text_table import clip, count
from kzconsumer.sinks.reports import Preview

_LEAST = 4
_BETWEEN = "  "


def preview_table(preview: Preview, width: int) -> str:
    """Names, types and cells, no line longer than `width` if there is room for all columns; then the bad records."""
    head = [[name for name, _ in preview.columns], [kind for _, kind in preview.columns]]
    cells = head + [[_text(cell) for cell in row] for row in preview.rows]
    wanted = [max(map(len, column)) for column in zip(*cells, strict=True)]
    widths = fitted(wanted, width - len(_BETWEEN) * (len(wanted) - 1))
    lines = [
        _BETWEEN.join(clip(cell, w).ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in cells
    ]
    lines += ["", f"{count(len(preview.rows), 'row')}, {count(len(preview.bad), 'bad record')}"]
    lines += [f"{bad.topic}-{bad.partition} offset {bad.offset}: {bad.reason}" for bad in preview.bad]
    return "\n".join(lines)


def fitted(wanted: Sequence[int], width: int) -> list[int]:
    """Widths of columns that together have `width`, the widest ones cut to one measure; none below four characters."""
    limit = max(wanted, default=0)
    while limit > _LEAST and sum(min(each, limit) for each in wanted) > width:
        limit -= 1
    return [min(each, limit) for each in wanted]


def _text(cell: object) -> str:
    text = cell if isinstance(cell, str) else json.dumps(cell, ensure_ascii=False)
    return text if text.isprintable() else json.dumps(text)
