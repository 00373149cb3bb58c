"""The screen of `kzconsumer top`: worst partitions first; what does not fit is left out.

Names from outside (groups, topics) are stripped of terminal control characters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from kzconsumer.figures import count, moment, plural, rate, span
from kzconsumer_tools.tables.text import clip
from kzconsumer_tools.top_feed import DaemonFeed

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
    for each in daemons:
        parts += ["", *_daemon(each, rows)] if rows else _daemon(each, 0)
    return Group(*parts)


def _together(daemons: Sequence[DaemonFeed]) -> Text:
    reached = [each.status for each in daemons if each.lost is None and each.status]
    return _line(
        f"{len(reached)} of {len(daemons)} reached",
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
    names = [plain(now.get("group", "")), clip(plain(each.address.listen), _ADDRESS)]
    trouble = _trouble(each)
    lines: list[RenderableType] = [_line(*filter(None, names), "" if trouble else "ready", style="bold")]
    if trouble:
        lines.append(_line(f"  {plain(trouble)}", style="red" if each.lost is not None else "yellow"))
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
    if rows and owned:
        lines.append(_partitions(owned, rows, old))
    return lines


def _trouble(each: DaemonFeed) -> str | None:
    now = each.status
    if each.lost is not None:
        return f"not reachable since {moment(datetime.fromtimestamp(each.lost, UTC))}: {each.reason}"
    if not now:
        return "connecting"
    return str(now["reason"]) if not now["ready"] or not now["alive"] else None


def _partitions(owned: Sequence[Mapping[str, Any]], rows: int, style: str) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), expand=True, style=style, header_style="dim")
    table.add_column("  PARTITION", no_wrap=True)
    table.add_column("STATE", no_wrap=True, overflow="ellipsis", ratio=1)
    for name in ("LAG", "BEHIND", "RATE", "DONE IN"):
        table.add_column(name, justify="right", no_wrap=True)
    worst = sorted(owned, key=lambda p: (not p["stalled"], -p["lag"].get("processed", 0), p["topic"], p["partition"]))
    for p in worst[:rows]:
        judged = p["judgement"] or ""
        state = Text(judged, style or _STYLES.get(judged, ""))
        if p["stalled"]:
            state.append(f" {p['hindrance']}, {span(p['standing'])}")
        elif p["paused"]:
            state.append(" paused")
        table.add_row(
            Text("  " + clip(f"{plain(p['topic'])}-{p['partition']}", _NAME)),
            state,
            count(p["lag"].get("processed")),
            span(p["lag_seconds"].get("processed")),
            rate(p["rate"]),
            span(p["eta"]),
        )
    return table


def _line(*parts: str, style: str = "") -> Text:
    return Text("  ".join(parts), style, no_wrap=True, overflow="ellipsis")


def plain(text: str) -> str:
    """The text with unprintable characters replaced: escape sequences, and changes of the writing direction."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)
