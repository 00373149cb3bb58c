"""A group's lag as text, in 80 columns.

Pure. Used by `kzconsumer lag`.
"""

from __future__ import annotations

from kzconsumer.cli.text_table import WIDTH, clip, columns, count, dash
from kzconsumer.group.lag import GroupLag


def lag_table(group: GroupLag) -> str:
    """A row for each partition, and the sum; `-` is not known."""
    rows = [("PARTITION", "STORED", "END", "LAG", "SECONDS", "TOPIC")]
    for each in group.partitions:
        seconds = "-" if each.seconds is None else f"{each.seconds:.1f}"
        rows.append((str(each.partition), dash(each.stored), dash(each.log_end), dash(each.lag), seconds, each.topic))
    seconds = "-" if group.seconds is None else f"{group.seconds:.1f}"
    unknown = f", {group.unknown} not known" if group.unknown else ""
    total = f"{count(len(group.partitions), 'partition')}{unknown}"
    lines = [clip(f"group {group.group}: lag {dash(group.lag)}, {seconds} seconds; {total}", WIDTH)]
    if group.partitions:
        lines += ["", *columns(rows, right={0, 1, 2, 3, 4})]
    return "\n".join(lines)
