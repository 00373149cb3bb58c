"""`-o json`, `jsonl` and `csv`: the same values in three forms."""

from __future__ import annotations

import argparse
import csv
import io
import json
from datetime import UTC, datetime
from functools import partial

import msgspec
import pytest

from kzconsumer_tools.commands.config_commands import ListedContext
from kzconsumer_tools.commands.output_and_options import as_text, show
from kzconsumer_tools.groups.group_lag import GroupLag, LagRow
from kzconsumer_tools.tables.group_tables import lag_table

AT = datetime(2026, 1, 31, tzinfo=UTC)
ROWS = (
    LagRow("a,b", 0, None, 3, 0, 10, 7, None, 1.5, None, 0, False),
    LagRow("c", 1, None, None, None, None, None, "no leader", None, "no leader", None, False),
)
LAG = GroupLag("orders", AT, None, 7, {"no leader": 1}, None, 1.5, {"no leader": 1}, 0, 0, ROWS)
LISTED = [ListedContext("prod", True, "zk1,zk2", "/a b"), ListedContext("test", False, None, "/c")]


def printed(form: str, result: object) -> str:
    return as_text(argparse.Namespace(output=form), result, lambda _: "the table")


@pytest.mark.parametrize("result", [LAG, LISTED])
def test_json_lines_are_the_rows_of_json(result: object) -> None:
    """Each with the time: of the reading, or of the line."""
    rows = [json.loads(line) for line in printed("jsonl", result).splitlines()]
    assert all(datetime.fromisoformat(row["at"]) for row in rows)
    whole = json.loads(printed("json", result))
    if isinstance(whole, list):
        assert [{key: value for key, value in row.items() if key != "at"} for row in rows] == whole
    else:
        about = {"group": "orders", "at": whole["at"]}
        assert rows == [{**about, **each} for each in whole["partitions"]]
    assert printed("table", result) == printed("wide", result) == "the table"


@pytest.mark.parametrize("result", [LAG, LISTED])
def test_csv_has_the_keys_and_values_of_json_lines(result: object) -> None:
    rows = list(csv.DictReader(io.StringIO(printed("csv", result))))
    expected = [json.loads(line) for line in printed("jsonl", result).splitlines()]
    if result is LISTED:  # CSV is for files, with times of their own
        expected = [{key: value for key, value in row.items() if key != "at"} for row in expected]
    else:
        expected = [{"group": row.pop("group"), **row} for row in expected]
    assert [list(row) for row in rows] == [list(row) for row in expected]
    for row, values in zip(rows, expected, strict=True):
        assert row == {key: _text(value) for key, value in values.items()}


def _text(value: object) -> str:
    return value if isinstance(value, str) else "" if value is None else json.dumps(value)


ODD = "\x1b[2Jhealthy\nall is well\u202e\x9b"


@pytest.mark.parametrize("form", ["table", "wide", "json", "jsonl", "csv"])
def test_texts_of_others_are_printable_in_every_form(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an owner node says cannot clear the screen, or write a line of its own."""
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    rows = (LagRow(ODD, 0, ODD, 0, 0, 0, 0, None, 0.0, None, 0, False),)
    found = GroupLag(ODD, AT, 0, 0, {}, 0.0, 0.0, {}, 0, 0, rows)
    text = as_text(argparse.Namespace(output=form), found, lag_table, partial(lag_table, wide=True))
    lines = text.split("\n")
    assert all(line.isprintable() for line in lines), lines
    assert len(lines) == {"table": 4, "wide": 4, "json": 1, "jsonl": 1, "csv": 5}[form]
    if form.startswith("json"):
        assert ODD in json.loads(text).values()


@pytest.mark.parametrize(("form", "text"), [("jsonl", ""), ("csv", ""), ("json", "[]\n")])
def test_nothing_is_no_row(capsys: pytest.CaptureFixture[str], form: str, text: str) -> None:
    assert show(argparse.Namespace(output=form), [], str) == 0
    assert capsys.readouterr().out == text


def test_lists_are_json_in_a_cell() -> None:
    class Listed(msgspec.Struct):
        name: str
        topics: list[str]

    assert printed("csv", [Listed("g", ["a", "b"])]) == 'name,topics\ng,"[""a"",""b""]"'
