"""Writes the drawings of the pages, `docs/images/*.svg`: `python docs/site/pictures.py`. A test finds a stale one.

Colours follow the reader's scheme (light or dark). A drawing has its own background, so it is also legible on a page
whose scheme was chosen by hand. The screens of `kzconsumer top` and of the demo are made by the product's own code, of
what two daemons served in a real run (top.json) and of what a demo has shown (demo.json, by record_demo.py): so they
change when the screens do. The curves are of what benchmarks have measured (growth.json, by growth.py).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.sax.saxutils import escape

import msgspec
from rich.console import Console, Group, RenderableType
from rich.segment import Segment
from rich.text import Text

from kzconsumer_sandbox.demo import screen
from kzconsumer_sandbox.demo.board import Board
from kzconsumer_tools.tables.top_screen import View, picture
from kzconsumer_tools.top_feed import Address, DaemonFeed

IMAGES = Path(__file__).parents[1] / "images"
WIDTH = 800
COLUMNS, CELL, LINE = 95, 7.8, 20
"""Of a terminal: characters, and pixels of one."""
COLOURS = ("red", "yellow", "green", "cyan", "magenta", "blue")
"""Of the terminal, that have a counterpart in each scheme."""
STYLE = """
  text { font: 16px system-ui, -apple-system, "Segoe UI", "Noto Sans", "DejaVu Sans", sans-serif; fill: #1f2328 }
  .title { font-weight: 600 } .heading { font-size: 17px; font-weight: 600 }
  .note { fill: #57606a; font-size: 15px } .label { fill: #0550ae; font-size: 15px }
  .page { fill: #ffffff; stroke: #d0d7de } .rule { stroke: #d0d7de }
  .box { fill: #f6f8fa; stroke: #6e7781 } .inner { fill: #ffffff; stroke: #8c959f }
  .kept { fill: #ddf4ff; stroke: #0969da } .done { fill: #dafbe1; stroke: #1a7f37 }
  .moved { fill: #fff1cc; stroke: #9a6700 } .group { fill: none; stroke: #6e7781; stroke-dasharray: 6 4 }
  .line { fill: none; stroke: #0969da; stroke-width: 2 } .head { fill: #0969da }
  .fault { fill: none; stroke: #9a6700; stroke-width: 2; stroke-dasharray: 6 4 } .faulthead { fill: #9a6700 }
  .cell { font: 13px ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; white-space: pre }
  .cell.title { font-weight: 700 }
  .red { fill: #b42318 } .yellow { fill: #805300 } .green { fill: #146c2e } .dim { fill: #57606a }
  .cyan { fill: #0f6674 } .magenta { fill: #8a2a8f } .blue { fill: #0550ae }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 } .note { fill: #a3adb8 } .label { fill: #79c0ff }
    .page { fill: #0d1117; stroke: #30363d } .rule { stroke: #30363d }
    .box { fill: #161b22; stroke: #8b949e } .inner { fill: #0d1117; stroke: #6e7681 }
    .kept { fill: #0c2d6b; stroke: #58a6ff } .done { fill: #033a16; stroke: #3fb950 }
    .moved { fill: #4b2900; stroke: #d29922 } .group { stroke: #8b949e }
    .line { stroke: #58a6ff } .head { fill: #58a6ff } .fault { stroke: #d29922 } .faulthead { fill: #d29922 }
    .red { fill: #ff8a80 } .yellow { fill: #e3b341 } .green { fill: #56d364 } .dim { fill: #a3adb8 }
    .cyan { fill: #5cd3e5 } .magenta { fill: #e58fe8 } .blue { fill: #79c0ff }
  }
"""
MARKER = (
    '<marker id="{name}" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
    'orient="auto-start-reverse"><path class="{name}" d="M0 0 10 5 0 10z"/></marker>'
)


class Drawing:
    """SVG elements in the order in which they are painted. Units are pixels."""

    def __init__(self, title: str, height: int) -> None:
        self._height = height
        self._title = title
        self._parts = [f'<rect class="page" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="8"/>']

    def text(self, x: float, y: float, words: str, kind: str = "", anchor: str = "middle") -> None:
        named = f' class="{kind}"' if kind else ""
        self._parts.append(f'<text{named} x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(words)}</text>')

    def box(self, x: float, y: float, width: float, height: float, lines: str = "", kind: str = "box") -> None:
        """A rectangle around lines of text; a first line that ends with a colon is its title, without the colon."""
        self._parts.append(f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6"/>')
        rows = lines.split("\n") if lines else []
        top = y + height / 2 - 11 * len(rows) + 16.5
        for number, row in enumerate(rows):
            title = row.endswith(":")
            assert 8.2 * len(row) < width, f"{row!r} is too long for its box"
            self.text(x + width / 2, top + 22 * number, row.removesuffix(":"), "title" if title else "note")

    def arrow(self, path: str, both: bool = False, kind: str = "line") -> None:
        head = "head" if kind == "line" else "faulthead"
        start = f' marker-start="url(#{head})"' if both else ""
        self._parts.append(f'<path class="{kind}" d="{path}" marker-end="url(#{head})"{start}/>')

    def curve(self, points: str, kind: str) -> None:
        self._parts.append(f'<path class="{kind}" d="M{points}"/>')

    def rule(self, y: float) -> None:
        self._parts.append(f'<path class="rule" d="M24 {y:g}H{WIDTH - 24}"/>')

    def cells(self, line: int, segments: list[Segment]) -> None:
        """A line of a terminal; each text takes its columns, whatever font the reader has."""
        column = 0
        for text, style, _ in segments:
            if shown := text.strip():
                place = column + len(text) - len(text.lstrip())
                kinds = ["cell"]
                if style is not None:
                    named = style.color is not None and not style.color.is_default
                    kinds += [style.color.name if style.color.name in COLOURS else "dim"] if named else []
                    kinds += ["dim"] if style.dim else ["title"] if style.bold else []
                self._parts.append(
                    f'<text class="{" ".join(kinds)}" x="{24 + place * CELL:.1f}" y="{34 + line * LINE}" '
                    f'textLength="{len(shown) * CELL:.1f}" xml:space="preserve">{escape(shown)}</text>'
                )
            column += len(text)

    def svg(self) -> str:
        return (
            "<!-- Made by docs/site/pictures.py. -->\n"
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {self._height}" width="{WIDTH}" '
            f'height="{self._height}" role="img" aria-labelledby="title">\n'
            f'<title id="title">{escape(self._title)}</title>\n<style>{STYLE}</style>\n'
            f"<defs>{MARKER.format(name='head')}{MARKER.format(name='faulthead')}</defs>\n"
            + "\n".join(self._parts)
            + "\n</svg>\n"
        )


def architecture() -> str:
    drawing = Drawing("A member between ZooKeeper, the brokers, and Python or Spark", 470)
    drawing.box(24, 40, 190, 132, "ZooKeeper:\nmembers of the group\nowners of partitions\nplans and offsets")
    drawing.box(64, 246, 150, 90, "Kafka brokers:\nlogs of the topics")
    drawing.box(300, 24, 240, 332)
    drawing.text(420, 52, "a member", "title")
    drawing.text(420, 75, "one process, one event loop", "note")
    drawing.box(320, 90, 200, 62, "membership:\nclaims, commits", "inner")
    drawing.box(320, 182, 200, 62, "streams:\nrecords in order", "inner")
    drawing.box(320, 274, 200, 62, "fetchers:\none or more a broker", "inner")
    drawing.box(620, 40, 156, 132, "Python:\nasync for\nbatches (Arrow)")
    drawing.box(620, 214, 156, 132, "a sink:\nSpark\nParquet files\nyour own")
    drawing.arrow("M318 121H216", both=True)
    drawing.text(257, 112, "claims", "label")
    drawing.text(257, 142, "offsets", "label")
    drawing.arrow("M214 305H318")
    drawing.text(257, 296, "records", "label")
    drawing.arrow("M420 272V247")
    drawing.arrow("M420 180V155")
    drawing.text(430, 172, "done", "label", "start")
    drawing.arrow("M522 203H580V106H618", both=True)
    drawing.arrow("M522 223H580V280H618", both=True)
    drawing.text(684, 198, "records out, done back", "label")
    drawing.box(24, 396, 752, 50, "", "group")
    drawing.text(400, 426, "other members of the group: kzconsumer, or the original Scala and Java consumer", "note")
    drawing.arrow("M140 394V338", both=True)
    drawing.arrow("M42 394V174", both=True)
    return drawing.svg()


def rebalance() -> str:
    drawing = Drawing("A rebalance in four frames: a third member joins a group of two", 640)
    frames = [
        ("1. A and B own six partitions", ["Both consume."], [("A", "0 1 2"), ("B", "3 4 5")]),
        (
            "2. C registers in ZooKeeper",
            ["All see it, and compute the same", "assignment. Nothing stops yet."],
            [("A", "0 1 2>"), ("B", "3 4> 5>"), ("C", "")],
        ),
        (
            "3. A releases 2, B 4 and 5",
            ["First they commit what they have done.", "0, 1 and 3 are consumed meanwhile."],
            [("A", "0 1"), ("B", "3"), ("C", "")],
        ),
        (
            "4. B claims 2, C claims 4 and 5",
            ["They continue at the committed offsets.", "No partition ever has two owners."],
            [("A", "0 1"), ("B", "2+ 3"), ("C", "4+ 5+")],
        ),
    ]
    for number, (title, notes, members) in enumerate(frames):
        left, top = 24 + number % 2 * 384, 20 + number // 2 * 284
        drawing.box(left, top, 368, 270)
        drawing.text(left + 16, top + 30, title, "heading", "start")
        for row, note in enumerate(notes):
            drawing.text(left + 16, top + 56 + 21 * row, note, "note", "start")
        for row, (name, partitions) in enumerate(members):
            y = top + 94 + row * 57
            drawing.box(left + 16, y, 336, 49, "", "inner")
            drawing.text(left + 38, y + 30, name, "title")
            for place, each in enumerate(partitions.split()):
                kind = {">": "moved", "+": "done"}.get(each[1:], "kept")
                drawing.box(left + 64 + 92 * place, y + 8, 84, 33, "", kind)
                drawing.text(left + 106 + 92 * place, y + 30, f"orders {each[0]}")
    for x, kind, words in (
        (64, "kept", "consumed"),
        (206, "moved", "about to move"),
        (380, "done", "claimed by its new owner"),
    ):
        drawing.box(x, 596, 22, 22, "", kind)
        drawing.text(x + 30, 613, words, "note", "start")
    return drawing.svg()


def range_states() -> str:
    drawing = Drawing("The states of a range of records, from fetched to committed", 452)
    names = ["fetched", "planned", "published", "committed"]
    kinds = ["box", "kept", "kept", "done"]
    columns = [246 + 150 * number for number in range(4)]
    for x, name, kind in zip(columns, names, kinds, strict=True):
        drawing.box(x - 58, 92, 116, 48, f"{name}:", kind)
    steps = [("one", "transaction"), ("write", "and sync"), ("one", "transaction")]
    for x, (first, second) in zip(columns, steps, strict=False):
        drawing.arrow(f"M{x + 59} 116H{x + 90}")
        drawing.text(x + 75, 62, first, "label")
        drawing.text(x + 75, 80, second, "label")
    drawing.text(
        24, 34, "The range of offsets 100 up to 200 of a partition, with a replayable sink", "heading", "start"
    )
    table = [
        ("ZooKeeper: offset", ["100", "100", "100", "200"]),
        ("ZooKeeper: plan", ["none", "100 to 200", "100 to 200", "none"]),
        ("destination ends at", ["100", "100", "200", "200"]),
    ]
    y = 178
    for title, cells in table:
        drawing.rule(y - 23)
        drawing.text(24, y, title, "note", "start")
        for x, cell in zip(columns, cells, strict=True):
            drawing.text(x, y, cell)
        y += 36
    drawing.rule(y - 23)
    drawing.text(24, y + 2, "after a crash here,", "note", "start")
    drawing.text(24, y + 23, "the next owner", "note", "start")
    after = [
        ("fetches it", "again"),
        ("writes exactly", "this range"),
        ("finds it written,", "and commits"),
        ("continues", "at 200"),
    ]
    for x, rows in zip(columns, after, strict=True):
        for row, words in enumerate(rows):
            drawing.text(x, y + 2 + 21 * row, words, "note")
    y += 62
    drawing.arrow(f"M396 {y - 22}V{y + 18}", kind="fault")
    drawing.box(250, y + 20, 292, 70, "quarantined:\na file, if on_batch_failure says so", "moved")
    drawing.arrow(f"M542 {y + 55}H696V{y - 22}", kind="fault")
    drawing.text(24, y + 50, "if the sink cannot", "note", "start")
    drawing.text(24, y + 71, "write the range", "note", "start")
    return drawing.svg()


def top() -> str:
    daemons = []
    for each in json.loads((Path(__file__).parent / "top.json").read_text()):
        feed = DaemonFeed(Address(each["address"]))
        feed.documents, feed.lost, feed.reason = each["documents"], each["lost"], each["reason"] or ""
        daemons.append(feed)
    title = "kzconsumer top: of three daemons one is unhealthy, one not reachable, one healthy"
    return screen_of(title, picture(daemons, 42, COLUMNS, View()))


def demo() -> str:
    run = json.loads((Path(__file__).parent / "demo.json").read_text())
    board, figures = msgspec.convert(run["board"], Board), msgspec.convert(run["figures"], screen.Figures)
    lines = [(at, Text.assemble((f"{screen.since(at):>5}  ", "dim"), text)) for at, text in run["lines"]]
    shown = Group(
        Text("$ make demo", style="bold"),
        *(line for at, line in lines if at <= run["seconds"]),
        Text(f"{screen.since(run['seconds']):>5}", style="bold"),
        screen.picture(board),
        "",
        *(line for at, line in lines if at > run["seconds"]),
        screen.verdict_table(figures, run["goal"]),
    )
    return screen_of("kzconsumer demo: a member is killed, others take over, each record is in the files once", shown)


OURS, OTHERS = "kzconsumer async for", "confluent-kafka poll"
Curves = Mapping[str, Sequence[tuple[float, float]]]
"""By name: points. The first one is drawn as a line, others are dashed."""


def growth() -> str:
    data = json.loads((Path(__file__).parent / "growth.json").read_text())

    def figures(name: str, over: str, **fixed: int) -> Curves:
        rests = [rest for rest in data["rests"] if rest["rate"] and all(rest[key] == fixed[key] for key in fixed)]
        named = {"async for": OURS, "confluent-kafka": OTHERS}
        return {
            shown: [(rest[over], each[name]) for rest in rests for each in rest["clients"] if each["client"] == client]
            for shown, client in named.items()
        }

    def given(name: str) -> Curves:
        return {client: [(int(at), cost) for at, cost in each.items()] for client, each in data[name].items()}

    panels = {
        "cores, by partitions (100 records/s)": figures("cores", "partitions", rate=100, topics=1),
        "delay in ms (p50), by partitions": figures("p50", "partitions", rate=100, topics=1),
        "cores, by topics (250 partitions)": figures("cores", "topics", partitions=250, rate=100),
        "cores, by records/s (8 partitions)": figures("cores", "rate", partitions=8, topics=1),
        "CPU s per million, by record bytes": given("sizes"),
        "requests to ZooKeeper, by members": given("members"),
    }
    measured = [
        (title, each) for title, each in panels.items() if len({at for curve in each.values() for at, _ in curve}) > 1
    ]
    drawing = Drawing(
        "How the cost of a member grows with partitions, topics, records, their size and the group",
        28 + 276 * math.ceil(len(measured) / 2),
    )
    for number, (title, curves) in enumerate(measured):
        _curves(drawing, 24 + 388 * (number % 2), 24 + 276 * (number // 2), title, curves)
    return drawing.svg()


def _curves(drawing: Drawing, x: float, y: float, title: str, curves: Curves) -> None:
    """Both axes are logarithmic; what grows as fast as that which it is drawn over rises by 45 degrees at most."""
    width, height, left, top = 364, 256, 16, 76
    drawing.box(x, y, width, height)
    drawing.text(x + width / 2, y + 26, title, "title")
    points = [point for each in curves.values() for point in each]
    least_x, most_x = min(at for at, _ in points), max(at for at, _ in points)
    least, most = min(value for _, value in points), max(value for _, value in points)
    wide = (width - 2 * left - 60) / math.log(most_x / least_x)
    scale = min(wide, (height - top - 56) / math.log(most / least))
    ground = y + height - 34

    def place(at: float, value: float) -> tuple[float, float]:
        return x + left + 24 + wide * math.log(at / least_x), ground - 18 - scale * math.log(value / least)

    for at in sorted({at for at, _ in points}):
        drawing.text(place(at, least)[0], ground + 22, f"{at:,.0f}", "note")
    for number, (name, each) in enumerate(curves.items()):
        kind = "fault" if number else "line"
        places = [place(*point) for point in each]
        drawing.curve(" L".join(f"{at:.1f} {value:.1f}" for at, value in places), kind)
        for (right, down), (at, value) in zip(places, each, strict=True):
            above = value >= max(v for other in curves.values() for a, v in other if a == at)
            drawing.text(right, down + (-8 if above else 18), f"{value:,g}", "note")
        drawing.text(x + left + 8 + 168 * number, y + 50, name, "label" if not number else "yellow", "start")


def screen_of(title: str, shown: RenderableType) -> str:
    """A terminal that shows this."""
    console = Console(width=COLUMNS, force_terminal=True, color_system="standard", legacy_windows=False)
    lines = console.render_lines(shown, console.options)
    drawing = Drawing(title, 38 + LINE * len(lines))
    for number, segments in enumerate(lines):
        drawing.cells(number, segments)
    return drawing.svg()


PICTURES = {
    "architecture.svg": architecture,
    "rebalance.svg": rebalance,
    "range-states.svg": range_states,
    "top.svg": top,
    "demo.svg": demo,
    "growth.svg": growth,
}

if __name__ == "__main__":
    for name, draw in PICTURES.items():
        (IMAGES / name).write_text(draw())
