"""The screen of `kzconsumer top`: worst partitions first; what does not fit is left out.

What names from outside (groups, topics) have that is not printable is escaped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from kzconsumer.figures import count, moment, plural, rate, span
from kzconsumer.printable import printable
from kzconsumer_tools.tables.text import clip, dash
from kzconsumer_tools.top_feed import DaemonFeed

#: States of a partition, the worst first (`kzconsumer.status.track.State`), and how each is shown.
_STYLES = {
    "stalled": "red",
    "commits stop": "red",
    "commits stall": "red",
    "commits go back": "red",
    "unknown": "yellow",
    "paused": "yellow",
    "behind": "",
    "caught up": "green",
}
_SEVERITY = tuple(_STYLES)
#: Characters of an address, and of the columns of a partition besides its name.
_ADDRESS = 48
_COLUMNS = 62
#: Characters of a name that are always shown.
_NAME = 22
#: Lines of a daemon besides its partitions.
_FRAME = 6


def picture(daemons: Sequence[DaemonFeed], height: int, width: int = 80) -> RenderableType:
    """Lines and characters. What does not fit is left out, and a line says how much."""
    rows = max(0, height - 2 - len(daemons) * _FRAME) // len(daemons)
    parts: list[RenderableType] = [_together(daemons)]
    for each in sorted(daemons, key=_health):
        parts += ["", *_daemon(each, rows, width)] if rows else _daemon(each, 0, width)
    return Group(*parts)


def _health(each: DaemonFeed) -> tuple[bool, bool, bool]:
    """A sort key: the worst first."""
    now = each.status
    return each.lost is None, bool(now.get("ready") and now.get("alive")), now.get("health") == "healthy"


def _together(daemons: Sequence[DaemonFeed]) -> Text:
    reached = [each.status for each in daemons if each.lost is None and each.status]
    how_many = f"{len(reached)} of {len(daemons)} reached"
    if not reached:
        return _line(how_many, style="bold")
    return _line(
        how_many,
        f"{sum(now.get('owned', 0) for now in reached)} partitions",
        f"lag {_lag_of_all(reached)}",
        rate(_sum(reached, "rate")),
        f"stalled {sum(now.get('stalled', 0) for now in reached)}",
        style="bold",
    )


def _lag_of_all(reached: Sequence[Mapping[str, Any]]) -> str:
    at_least = sum(now["total"]["at_least"] for now in reached)
    unknown = sum(sum(now["total"]["unknown"].values()) for now in reached)
    return f"at least {count(at_least)} ({plural(unknown, 'partition')} unknown)" if unknown else count(at_least)


def _sum(reached: Sequence[Mapping[str, Any]], name: str) -> Any:
    """None if it is unknown for any daemon."""
    found = [now[name] for now in reached]
    return None if None in found else sum(found)


def _daemon(each: DaemonFeed, rows: int, width: int) -> list[RenderableType]:
    now = each.status
    names = [printable(now.get("group", "")), clip(printable(each.address.listen), _ADDRESS)]
    state, reasons = _state(each)
    lines: list[RenderableType] = [_line(*filter(None, names), state, style="bold")]
    lines += [_line(f"  {printable(reason)}", style="red" if each.lost is not None else "yellow") for reason in reasons]
    if not now:
        return lines
    old = "dim" if each.lost is not None else ""
    lines.append(
        _line(
            f"  {plural(now['owned'], 'partition')}",
            plural(now["members"], "member"),
            f"lag {now['lag_text']}",
            f"behind by {now['lag_seconds_text']}",
            rate(now["rate"]),
            f"stalled {count(now['stalled'])}",
            style=old,
            wraps=True,
        )
    )
    owned = each.documents.get("partitions", {}).get("owned", [])
    group = each.documents.get("group", {}).get("partitions", [])
    rows = max(0, rows - max(0, len(reasons) - 1))
    if rows and (group or owned):
        lines.append(_group(group, rows, old, width) if group else _partitions(owned, rows, old, width))
        if (more := len(group or owned) - rows) > 0:
            lines.append(_line(f"  and {plural(more, 'partition')} more, none of them worse", style="dim"))
    return lines


def _state(each: DaemonFeed) -> tuple[str, list[str]]:
    """One word, empty if the reasons say it, and the reasons."""
    now = each.status
    if each.lost is not None:
        return "", [f"not reachable since {moment(datetime.fromtimestamp(each.lost, UTC))}: {each.reason}"]
    if not now:
        return "", ["connecting"]
    return now["health"], [*(found["text"] for found in now["findings"]), *now["not_asked"]]


def _partitions(owned: Sequence[Mapping[str, Any]], rows: int, style: str, width: int) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), expand=True, style=style, header_style="dim")
    table.add_column("  PARTITION", no_wrap=True)
    table.add_column("STATE", no_wrap=True, overflow="ellipsis", ratio=1)
    for name in ("LAG", "BEHIND", "RATE", "DONE IN"):
        table.add_column(name, justify="right", no_wrap=True)
    for p in sorted(owned, key=_progress)[:rows]:
        table.add_row(
            Text("  " + clip(f"{printable(p['topic'])}-{p['partition']}", max(_NAME, width - _COLUMNS))),
            Text(p["state"], style or _STYLES.get(p["state"], "")).append(_why(p), style or "default"),
            _lag(p["progress"]),
            span(p["progress"]["seconds"]),
            rate(p["rate"]),
            span(p["eta"]) if p["eta"] is not None else "",
        )
    return table


def _why(p: Mapping[str, Any]) -> str:
    if p["state"] == "stalled":
        return f" {p['hindrance']}, {span(p['standing'])}"
    return f" {p['progress']['why']['reason']}" if p["progress"]["why"] else ""


def _lag(progress: Mapping[str, Any]) -> str:
    """Of an unknown lag what it is at least, if that is more than nothing."""
    if progress["lag"] is not None:
        return count(progress["lag"])
    return f">= {count(progress['at_least'])}" if progress["at_least"] else "-"


def _progress(p: Mapping[str, Any]) -> tuple[object, ...]:
    """A sort key: the worst first, then by name."""
    return _SEVERITY.index(p["state"]), -p["progress"]["at_least"], p["topic"], p["partition"]


def _group(partitions: Sequence[Mapping[str, Any]], rows: int, style: str, width: int) -> Table:
    """All partitions of the group: those without owner first, then by lag."""
    table = Table(box=None, padding=(0, 1, 0, 0), expand=True, style=style, header_style="dim")
    table.add_column("  PARTITION", no_wrap=True)
    table.add_column("OWNER", no_wrap=True, overflow="ellipsis", ratio=1)
    for name in ("COMMITTED", "LOG END", "LAG", "RATE"):
        table.add_column(name, justify="right", no_wrap=True)
    worst = sorted(partitions, key=lambda p: (p["owner"] is not None, -(p["lag"] or 0), p["topic"], p["partition"]))
    for p in worst[:rows]:
        table.add_row(
            Text("  " + clip(f"{printable(p['topic'])}-{p['partition']}", _NAME)),
            Text(clip(printable(p["owner"] or "-"), _NAME)),
            dash(p["committed"]),
            dash(p["end"]),
            count(p["lag"]),
            rate(p["rate"]),
        )
    return table


def _line(*parts: str, style: str = "", wraps: bool = False) -> Text:
    return Text("  ".join(parts), style, no_wrap=not wraps, overflow="fold" if wraps else "ellipsis")
