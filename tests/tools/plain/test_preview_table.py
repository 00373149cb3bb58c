"""A preview as a table: it fits, and shows where the bad records are."""

from __future__ import annotations

from kzconsumer.sinks.reports import BadRecord, Preview
from kzconsumer_tools.tables.sink import preview_table


def test_a_preview_fits_the_terminal() -> None:
    preview = Preview(
        columns=(("id", "bigint"), ("note", "string"), ("lines", "array<struct<item:string,count:bigint>>")),
        rows=((1, "a\nb", [{"item": "x", "count": 2}]), (None, "é" * 100, [])),
        bad=(BadRecord("t", 0, 17, "value is not UTF-8"),),
    )
    lines = preview_table(preview, 60).splitlines()
    assert lines[0].split() == ["id", "note", "lines"]
    assert max(map(len, lines)) <= 60
    assert lines[2].split()[:2] == ["1", '"a\\nb"']
    assert '[{"item": "x", "count": 2}]' in preview_table(preview, 300)
    assert lines[-2:] == ["2 rows, 1 bad record", "t-0 offset 17: value is not UTF-8"]
