"""The screen of `kzconsumer top`: worst partitions first; what does not fit is left out.

What names from outside (groups, topics) have that is not printable is escaped.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from textwrap import wrap
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from kzconsumer.display import count, moment, plural, printable, rate, span
from kzconsumer_tools.tables.text import clip, dash
from kzconsumer_tools.top_feed import DaemonFeed

#: States of a partition, the worst first (`kzconsumer.status.partition_health.State`), and how each is shown.
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
#: Characters of an address, and of the columns of a partition besides its name; in the group's table besides its owner,
#: too.
_ADDRESS = 48
_COLUMNS = 62
_NUMBERS = 46
#: The least width of a screen that has these columns: on a narrow one the state would be cut off.
_FROM_WIDTH = {"DONE IN": 80, "RATE": 70, "BEHIND": 58}
#: Characters of a name that are always shown.
_NAME = 22
#: Lines of a daemon besides its partitions.
_FRAME = 6


class View:
    """What the keys have chosen: q ends, / finds partitions by name, arrows and page keys move through the rest."""

    def __init__(self) -> None:
        self.first = 0
        """Partitions of each daemon that are scrolled over."""
        self.named = ""
        """Part of the names that are shown."""
        self.typing = False
        self.ended = False

    def press(self, typed: str) -> None:
        """One read of the terminal: any number of keys."""
        for key in _KEY.findall(typed):
            if self.typing:
                self._find(key)
            elif key in ("q", "Q", "\x1b", "\x03", "\x04"):
                self.ended = True
            elif key == "/":
                self.typing, self.named, self.first = True, "", 0
            elif key in _STEPS:
                self.first = max(0, self.first + _STEPS[key])
            elif key in ("g", "\x1b[H", "\x1b[1~"):
                self.first = 0

    def _find(self, key: str) -> None:
        self.first = 0
        if key in ("\r", "\n"):
            self.typing = False
        elif key == "\x1b":
            self.typing, self.named = False, ""
        elif key in ("\x7f", "\b"):
            self.named = self.named[:-1]
        elif key.isprintable():
            self.named += key

    def chosen(self, partitions: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        named = self.named.lower()
        return [each for each in partitions if named in f"{each['topic']}-{each['partition']}".lower()]

    @property
    def footer(self) -> Text:
        if self.typing:
            return _line(f"find: {printable(self.named)}_  Enter keeps it, Esc shows all", style="bold")
        found = (f"named {printable(self.named)}",) if self.named else ()
        return _line(*found, "q quit", "/ find", "arrows scroll", style="dim")


_KEY = re.compile(r"\x1b\[[0-9;]*[A-Za-z~]|\x1bO[A-Za-z]|.", re.DOTALL)
#: Partitions that a key moves by.
_STEPS = {
    "j": 1,
    "\x1b[B": 1,
    "\x1bOB": 1,
    "k": -1,
    "\x1b[A": -1,
    "\x1bOA": -1,
    " ": 10,
    "\x1b[6~": 10,
    "b": -10,
    "\x1b[5~": -10,
}


def picture(daemons: Sequence[DaemonFeed], height: int, width: int = 80, view: View | None = None) -> RenderableType:
    """Lines and characters. What does not fit is left out, and a line says how much. `view`: of a live screen."""
    rows = max(0, height - 2 - (view is not None) - len(daemons) * _FRAME) // len(daemons)
    if view is not None:  # not further than to the last partition
        view.first = min(view.first, max(0, *(len(view.chosen(_shown(each))) - rows for each in daemons)))
    parts: list[RenderableType] = [_together(daemons)]
    for each in sorted(daemons, key=_health):
        parts += ["", *_daemon(each, rows, width, view)] if rows else _daemon(each, 0, width, view)
    return Group(*parts, view.footer) if view is not None else Group(*parts)


def _shown(each: DaemonFeed) -> list[Mapping[str, Any]]:
    """Its partitions, or with --group those of the whole group."""
    found: list[Mapping[str, Any]] = each.documents.get("group", {}).get("partitions", [])
    return found or each.documents.get("partitions", {}).get("owned", [])


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
        _lag_of_all(reached),
        rate(_sum(reached, "rate")),
        f"stalled {sum(now.get('stalled', 0) for now in reached)}",
        style="bold",
    )


def _lag_of_all(reached: Sequence[Mapping[str, Any]]) -> str:
    at_least = sum(now["total"]["at_least"] for now in reached)
    unknown = sum(sum(now["total"]["unknown"].values()) for now in reached)
    if not unknown:
        return f"lag {count(at_least)}"
    return f"lag {f'at least {count(at_least)}' if at_least else 'unknown'} ({unknown:,} unknown)"


def _sum(reached: Sequence[Mapping[str, Any]], name: str) -> Any:
    """None if it is unknown for any daemon."""
    found = [now[name] for now in reached]
    return None if None in found else sum(found)


def _daemon(each: DaemonFeed, rows: int, width: int, view: View | None) -> list[RenderableType]:
    now = each.status
    name, address = printable(now.get("group", each.of)), clip(printable(each.address.listen), _ADDRESS)
    state, reasons = _state(each)
    lines: list[RenderableType] = [_line(*filter(None, (name, address, state)), style="bold")]
    said = [line for reason in reasons for line in _wrapped(printable(reason), width)]
    lines += [_line(line, style="red" if each.lost is not None else "yellow") for line in said]
    if not now:
        return lines
    old = "dim" if each.lost is not None else ""
    figures = _figures(now, width)
    lines += [_line(line, style=old) for line in figures]
    group = bool(each.documents.get("group", {}).get("partitions"))
    partitions = view.chosen(_shown(each)) if view is not None else _shown(each)
    first = view.first if view is not None else 0
    rows = max(0, rows - max(0, len(said) - 1) - (len(figures) - 1))
    if rows and partitions:
        partitions = sorted(partitions, key=_rank if group else _progress)[first:]
        lines.append((_group if group else _partitions)(partitions[:rows], old, width))
        if (more := len(partitions) - rows) > 0:
            lines.append(_line(f"  and {plural(more, 'partition')} more, none of them worse", style="dim"))
    return lines


def _wrapped(text: str, width: int) -> list[str]:
    """A sentence is not cut: what it says last is why."""
    return wrap(text, width, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False)


def _figures(now: Mapping[str, Any], width: int) -> list[str]:
    """In one line if they fit, and broken between two figures if not. The lines above say why a figure is unknown."""
    least = now["total"]["at_least"]
    lag = now["lag_text"] if not now["total"]["unknown"] else f">= {count(least)}" if least else "unknown"
    lines = [f"  {plural(now['owned'], 'partition')}"]
    for each in (
        plural(now["members"], "member"),
        f"lag {lag}",
        f"behind by {now['lag_seconds_text'].replace('at least', '>=')}",
        rate(now["rate"]),
        f"stalled {count(now['stalled'])}",
    ):
        if len(lines[-1]) + len(each) + 2 <= width:
            lines[-1] += f"  {each}"
        else:
            lines.append(f"  {each}")
    return lines


def _state(each: DaemonFeed) -> tuple[str, list[str]]:
    """One word, empty if the reasons say it, and the reasons."""
    now = each.status
    if each.lost is not None:
        return "", [f"not reachable since {moment(datetime.fromtimestamp(each.lost, UTC))}: {each.reason}"]
    if not now:
        return "", ["connecting"]
    return now["health"], [*(found["text"] for found in now["findings"]), *now["not_asked"]]


def _table(second: str, figures: Sequence[str], style: str) -> Table:
    """Of partitions, a row for each: its name, what its second column says, and figures."""
    table = Table(box=None, padding=(0, 1, 0, 0), expand=True, style=style, header_style="dim")
    table.add_column("  PARTITION", no_wrap=True)
    table.add_column(second, no_wrap=True, overflow="ellipsis", ratio=1)
    for name in figures:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _partitions(owned: Sequence[Mapping[str, Any]], style: str, width: int) -> Table:
    shown = [name for name in ("LAG", "BEHIND", "RATE", "DONE IN") if width >= _FROM_WIDTH.get(name, 0)]
    table = _table("STATE", shown, style)
    for p in owned:
        figures = {"LAG": _lag(p["progress"]), "BEHIND": span(p["progress"]["seconds"]), "RATE": rate(p["rate"])}
        figures["DONE IN"] = span(p["eta"]) if p["eta"] is not None else ""
        table.add_row(
            Text("  " + clip(f"{printable(p['topic'])}-{p['partition']}", max(_NAME, width - _COLUMNS))),
            Text(p["state"], style or _STYLES.get(p["state"], "")).append(_why(p), style or "default"),
            *(figures[name] for name in shown),
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


def _group(partitions: Sequence[Mapping[str, Any]], style: str, width: int) -> Table:
    """All partitions of the group: those without owner first, then by lag."""
    room = max(_NAME, (width - _NUMBERS) // 2)
    shown = [name for name in ("COMMITTED", "LOG END", "LAG", "RATE") if width >= _FROM_WIDTH.get(name, 0)]
    table = _table("OWNER", shown, style)
    for p in partitions:
        figures = {"COMMITTED": dash(p["committed"]), "LOG END": dash(p["end"]), "LAG": count(p["lag"])}
        figures["RATE"] = rate(p["rate"])
        table.add_row(
            Text("  " + clip(f"{printable(p['topic'])}-{p['partition']}", room)),
            Text(clip(printable(p["owner"] or "-"), room)),
            *(figures[name] for name in shown),
        )
    return table


def _rank(p: Mapping[str, Any]) -> tuple[object, ...]:
    """A sort key of the group's partitions: without owner first, then of unknown lag, then by lag."""
    return p["owner"] is not None, p["lag"] is not None, -(p["lag"] or 0), p["topic"], p["partition"]


def _line(*parts: str, style: str = "") -> Text:
    return Text("  ".join(parts), style, no_wrap=True, overflow="ellipsis")
