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

_SEVERITY = ("OK", "WARN", "STOP", "STALL", "REWIND")
_STYLES = {"OK": "green", "WARN": "yellow", "STOP": "red", "STALL": "red", "REWIND": "red"}
#: Widths of a partition's name and of an address, in characters.
_NAME = 24
_ADDRESS = 48
#: Lines of a daemon besides its partitions.
_FRAME = 5


def picture(daemons: Sequence[DaemonFeed], height: int) -> RenderableType:
    """`height` is in lines; if there are many daemons, partitions are left out."""
    rows = max(0, height - 2 - len(daemons) * _FRAME) // len(daemons)
    parts: list[RenderableType] = [_together(daemons)]
    for each in sorted(daemons, key=_health):
        parts += ["", *_daemon(each, rows)] if rows else _daemon(each, 0)
    return Group(*parts)


def _health(each: DaemonFeed) -> tuple[bool, bool, bool]:
    """A sort key: the worst first."""
    now = each.status
    return each.lost is None, bool(now.get("ready") and now.get("alive")), not now.get("degraded")


def _together(daemons: Sequence[DaemonFeed]) -> Text:
    reached = [each.status for each in daemons if each.lost is None and each.status]
    how_many = f"{len(reached)} of {len(daemons)} reached"
    if not reached:
        return _line(how_many, style="bold")
    return _line(
        how_many,
        f"{sum(now.get('owned', 0) for now in reached)} partitions",
        f"lag {count(_sum(reached, 'lag'))}",
        rate(_sum(reached, "rate")),
        f"stalled {sum(now.get('stalled', 0) for now in reached)}",
        style="bold",
    )


def _sum(reached: Sequence[Mapping[str, Any]], name: str) -> Any:
    """None if it is unknown for any daemon."""
    found = [now[name] for now in reached]
    return None if None in found else sum(found)


def _daemon(each: DaemonFeed, rows: int) -> list[RenderableType]:
    now = each.status
    names = [printable(now.get("group", "")), clip(printable(each.address.listen), _ADDRESS)]
    state, reasons = _state(each)
    lines: list[RenderableType] = [_line(*filter(None, names), state, style="bold")]
    if reasons:
        lines.append(_line(f"  {printable(reasons)}", style="red" if each.lost is not None else "yellow"))
    if not now:
        return lines
    old = "dim" if each.lost is not None else ""
    figures = _line(
        f"  {plural(now['owned'], 'partition')}",
        plural(now["members"], "member"),
        f"lag {count(now['lag'])} ({span(now['lag_seconds'])})",
        rate(now["rate"]),
        f"stalled {count(now['stalled'])}",
        style=old,
    )
    if now["judgement"]:
        figures.append(f"  {now['judgement']}", old or _STYLES.get(now["judgement"], ""))
    lines.append(figures)
    owned = each.documents.get("partitions", {}).get("owned", [])
    group = each.documents.get("group", {}).get("partitions", [])
    if rows and group:
        lines.append(_group(group, rows, old))
    elif rows and owned:
        lines.append(_partitions(owned, rows, old))
    return lines


def _state(each: DaemonFeed) -> tuple[str, str]:
    """One word, empty if the reasons say it, and the reasons."""
    now = each.status
    if each.lost is not None:
        return "", f"not reachable since {moment(datetime.fromtimestamp(each.lost, UTC))}: {each.reason}"
    if not now:
        return "", "connecting"
    if not now["ready"] or not now["alive"]:
        return "", str(now["reason"])
    reasons = "; ".join(reason["text"] for reason in now.get("degraded", ()))
    return "degraded" if reasons else "ready", reasons


def _partitions(owned: Sequence[Mapping[str, Any]], rows: int, style: str) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), expand=True, style=style, header_style="dim")
    table.add_column("  PARTITION", no_wrap=True)
    table.add_column("STATE", no_wrap=True, overflow="ellipsis", ratio=1)
    for name in ("LAG", "BEHIND", "RATE", "DONE IN"):
        table.add_column(name, justify="right", no_wrap=True)
    for p in sorted(owned, key=_progress)[:rows]:
        judged = p["judgement"] or ""
        state = Text(judged, style or _STYLES.get(judged, ""))
        if p["stalled"]:
            state.append(f" {p['hindrance']}, {span(p['standing'])}")
        elif p["paused"]:
            state.append(" paused")
        table.add_row(
            Text("  " + clip(f"{printable(p['topic'])}-{p['partition']}", _NAME)),
            state,
            count(p["lag"].get("processed")),
            span(p["lag_seconds"].get("processed")),
            rate(p["rate"]),
            span(p["eta"]) if p["eta"] is not None else "",
        )
    return table


def _progress(p: Mapping[str, Any]) -> tuple[object, ...]:
    """A sort key: the worst first, then by name."""
    severity = _SEVERITY.index(p["judgement"]) if p["judgement"] in _SEVERITY else -1
    return not p["stalled"], -severity, -p["lag"].get("processed", 0), p["topic"], p["partition"]


def _group(partitions: Sequence[Mapping[str, Any]], rows: int, style: str) -> Table:
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


def _line(*parts: str, style: str = "") -> Text:
    return Text("  ".join(parts), style, no_wrap=True, overflow="ellipsis")
