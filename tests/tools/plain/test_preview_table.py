"""A preview as a table: it fits, and shows where the bad records are."""

from __future__ import annotations

import argparse
import csv
import io
import json

import pytest

from kzconsumer.sinks.interface import BadRecord, Preview
from kzconsumer_tools.commands.sink_commands import show_preview
from kzconsumer_tools.tables.offset_tables import preview_table

PREVIEW = Preview(
    columns=(("id", "bigint"), ("note", "string"), ("lines", "array<struct<item:string,count:bigint>>")),
    rows=((1, "a\nb", [{"item": "x", "count": 2}]), (None, "é" * 100, [])),
    bad=(BadRecord("t", 0, 17, "value is not UTF-8"),),
)


def test_a_preview_fits_the_terminal() -> None:
    lines = preview_table(PREVIEW, 60).splitlines()
    assert lines[0].split() == ["id", "note", "lines"]
    assert max(map(len, lines)) <= 60
    assert lines[2].split()[:2] == ["1", '"a\\nb"']
    assert '[{"item": "x", "count": 2}]' in preview_table(PREVIEW, 300)
    assert lines[-2:] == ["2 rows, 1 bad record", "t-0 offset 17: value is not UTF-8"]


def test_every_form_of_output(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A wide table cuts nothing; JSON lines and CSV are the rows, by the names of the columns."""
    monkeypatch.setenv("COLUMNS", "60")

    def printed(form: str) -> str:
        assert show_preview(argparse.Namespace(output=form), PREVIEW) == 1, "there is a bad record"
        return capsys.readouterr().out

    assert ("é" * 100 in printed("wide"), "é" * 100 in printed("table")) == (True, False)
    assert json.loads(printed("json"))["bad"][0]["offset"] == 17
    names = ["id", "note", "lines"]
    lines = [json.loads(line) for line in printed("jsonl").splitlines()]
    assert [{name: line[name] for name in names} for line in lines] == [
        dict(zip(names, row, strict=True)) for row in PREVIEW.rows
    ]
    assert list(csv.reader(io.StringIO(printed("csv")))) == [
        names,
        ["1", "a\nb", '[{"item":"x","count":2}]'],
        ["", "é" * 100, "[]"],
    ]
