"""What a Delta log says of a file's columns, so that readers can pass over it: from the file's own footer.

Owns no state. Of columns whose bounds Parquet keeps exactly: whole numbers, dates, times.
"""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq

_MILLISECOND = datetime.timedelta(milliseconds=1)


def statistics(file: Path) -> str:
    """JSON. Raises OSError."""
    footer = pq.read_metadata(file)
    lowest: dict[str, Any] = {}
    highest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for number in range(footer.num_columns):
        column = footer.schema.column(number)
        if column.path != column.name or column.max_definition_level > 1:
            continue  # inside of another one
        found: list[Any] = [footer.row_group(group).column(number).statistics for group in range(footer.num_row_groups)]
        known = [each for each in found if each is not None and each.has_null_count]
        if len(known) < len(found):
            continue
        nulls[column.name] = sum(each.null_count for each in known)
        bounds = [(each.min, each.max) for each in known if each.has_min_max]
        if len(bounds) == len(found) and bounds and isinstance(bounds[0][0], int | datetime.date):
            lowest[column.name] = _told(min(low for low, _ in bounds))
            highest[column.name] = _told(max(high for _, high in bounds), up=True)
    told = {"numRecords": footer.num_rows, "minValues": lowest, "maxValues": highest, "nullCount": nulls}
    return msgspec.json.encode(told).decode()


def _told(value: Any, *, up: bool = False) -> Any:
    """As in the log, where times are of whole milliseconds."""
    if not isinstance(value, datetime.datetime):
        return value.isoformat() if isinstance(value, datetime.date) else value
    if up and value.microsecond % 1000:
        value += _MILLISECOND
    whole = value.strftime("%Y-%m-%dT%H:%M:%S")
    return f"{whole}.{value.microsecond // 1000:03d}{'' if value.tzinfo is None else 'Z'}"
