"""Puts what the parts `rest` and `first` of the benchmark have measured into the pages.

`python -m tests.bench --part first rest --json | python docs/site/growth.py` writes `growth.json`, the table of
docs/performance.md and the drawing of how cost grows. Lines that were not measured stay (`--rest` measures some).
Arguments are a note on the machine ("with other work on both processors"). With `-n` the latter two are made again of
`growth.json`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

DATA = Path(__file__).with_suffix(".json")
PAGE = Path(__file__).parents[1] / "performance.md"
BEGIN, END = "<!-- made by docs/site/growth.py -->\n", "<!-- end -->\n"
NAMES = {
    "kzconsumer async for": "`async for`",
    "kzconsumer async for, uvloop": "`async for`, uvloop",
    "confluent-kafka poll": "confluent-kafka",
    "aiokafka async for": "aiokafka",
}


def taken(report: Mapping[str, Any], before: Mapping[str, Any], note: str = "") -> dict[str, Any]:
    """What the pages need of a report of `tests.bench` (JSON), and of what they had before."""
    where = f"{report['processors']} processors, one {report['broker']} broker, Python {report['python']}"
    where = ", ".join(filter(None, (where, f"librdkafka {report['librdkafka']}", note)))
    rests = {load(rest): rest for rest in before["rests"]}
    for rest in report["rests"]:
        clients = [rounded(each) for each in rest["lines"]]
        rests[load(rest)] = {**{key: rest[key] for key in ("partitions", "topics", "rate")}, "clients": clients}
    first = {
        line["client"]: float(f"{line['seconds']['median']:.2g}")
        for delays in report["delays"]
        for line in delays["lines"]
        if line["what"] == "first message"
    }
    found = {"machine": where, "rests": [rests[each] for each in sorted(rests)], "first": first or before["first"]}
    return {**before, **found}


def load(rest: Mapping[str, Any]) -> tuple[int, int, int]:
    return rest["partitions"], rest["topics"], rest["rate"]


def rounded(line: Mapping[str, Any]) -> dict[str, Any]:
    """Of one client: cores, milliseconds, MiB."""
    return {
        "client": line["client"],
        "cores": float(f"{line['cores']:.2g}"),
        "broker_cores": float(f"{line['broker_cores']:.2g}"),
        "p50": float(f"{1000 * line['p50']:.2g}"),
        "p99": float(f"{1000 * line['p99']:.2g}"),
        "memory": round(line["peak_rss"] / 2**20),
    }


def table(found: Mapping[str, Any]) -> str:
    rows = [
        "| partitions, records/s | | cores | p50; p99 (ms) | cores of the broker | MiB |",
        "|---|---|---|---|---|---|",
    ]
    for rest in found["rests"]:
        where = f" in {rest['topics']} topics" if rest["topics"] > 1 else ""
        what = f"{rest['partitions']:,}{where}, " + (f"{rest['rate']:,}" if rest["rate"] else "none")
        for each in rest["clients"]:
            delays = f"{each['p50']:g}; {each['p99']:g}" if rest["rate"] else ""
            name = NAMES.get(each["client"], each["client"])
            rows.append(
                f"| {what} | {name} | {each['cores']:g} | {delays} | {each['broker_cores']:g} | {each['memory']} |"
            )
            what = ""
    firsts = ", ".join(f"{NAMES.get(client, client)} {seconds:g} s" for client, seconds in found["first"].items())
    first = [f"From the start of a process to its first message: {firsts}."] if firsts else []
    return "".join(f"{row}\n" for row in [*rows, "", *first, f"({found['machine']}.)"])


def with_table(page: str, found: Mapping[str, Any]) -> str:
    before, _, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    assert end, f"no {BEGIN.strip()} ... {END.strip()} in the page"
    return before + BEGIN + table(found) + END + after


def main() -> None:
    found = json.loads(DATA.read_text())
    if sys.argv[1:] != ["-n"]:
        found = taken(json.load(sys.stdin), found, " ".join(sys.argv[1:]))
        DATA.write_text(json.dumps(found, indent=1) + "\n")
    PAGE.write_text(with_table(PAGE.read_text(), found))
    import pictures  # after its data

    (pictures.IMAGES / "growth.svg").write_text(pictures.growth())


if __name__ == "__main__":
    main()
