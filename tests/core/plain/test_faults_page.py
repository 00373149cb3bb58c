"""docs/faults.md: each row names its tests, which exist, and has the bound that they assert."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.support.simulated.recovery import FAULTS

ROOT = Path(__file__).parents[3]
ROWS = [
    line.strip("| ").split(" | ")
    for line in (ROOT / "docs" / "faults.md").read_text().splitlines()
    if line.startswith("| ") and not line.startswith("| fault |")
]
PLAYED = "tests/core/plain/test_fault_recovery.py::test_members_consume_again["
_TEST = re.compile(r"<!-- (\S+\.py)::(\w+)(?:\[[^\]]+\])? -->")
_FAULT = re.compile(re.escape(f"<!-- {PLAYED}") + r"([^\]]+)\] -->")
_CONSTANT = re.compile(r"<!-- (\S+\.py): (\w+) -->")
_COMMENT = re.compile(r"<!-- .*? -->")


def tree(file: str) -> ast.Module:
    return ast.parse((ROOT / file).read_text())


def constant(file: str, name: str) -> float:
    (value,) = (
        node.value
        for node in tree(file).body
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == [name]
    )
    return float(ast.literal_eval(value))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_row_has_tests_that_exist_or_says_that_there_is_none(row: list[str]) -> None:
    assert len(row) == 3
    tests, comments = _TEST.findall(row[2]), _COMMENT.findall(row[2])
    assert bool(tests) != row[2].startswith("not tested")
    assert len(tests) + len(_CONSTANT.findall(row[2])) == len(comments)
    for file, name in tests:
        names = {each.name for each in tree(file).body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}
        assert name in names, file


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_time_is_the_bound_of_a_test(row: list[str]) -> None:
    shown = _COMMENT.sub("", row[2])
    bounds = {FAULTS[fault].bound for fault in _FAULT.findall(row[2])}
    bounds |= {constant(file, name) for file, name in _CONSTANT.findall(row[2])}
    if shown.startswith(("—", "not tested")):
        assert not bounds
        return
    (bound,) = bounds
    assert shown.startswith(f"{bound:g} s")
    after = {FAULTS[fault].lasts > 0 for fault in _FAULT.findall(row[2])}
    assert not after or after == {shown == f"{bound:g} s after it"}


def test_every_fault_that_is_played_is_on_the_page() -> None:
    assert {fault for row in ROWS for fault in _FAULT.findall(row[2])} == FAULTS.keys()
