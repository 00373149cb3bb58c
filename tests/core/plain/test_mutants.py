"""The planted bugs fit the code and the tests as they are; `make mutants` plants them."""

from __future__ import annotations

import ast
from collections import Counter
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.mutants.mutant import ROOT, areas, every

AREAS = areas()
MUTANTS = list(every(AREAS))


class Names(NamedTuple):
    """Tests, classes of tests as `Class` and `Class::test`, and state machines, which are assigned."""

    all: frozenset[str]
    by_night: frozenset[str]
    """Those that `make test` skips."""


@cache
def names_defined(file: Path) -> Names:
    """A class also has the tests of a base that it imports from `tests`."""
    names, by_night, suites = set[str](), set[str](), dict[str, Path]()

    def add(name: str, *marked: ast.expr) -> None:
        names.add(name)
        if any(isinstance(each, ast.Name) and each.id == "only_nightly" for each in marked):
            by_night.add(name)

    whole: list[ast.expr] = []
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tests."):
            suites |= {each.name: ROOT.joinpath(*str(node.module).split(".")).with_suffix(".py") for each in node.names}
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name) and target.id == "pytestmark":
                    whole = node.value.elts if isinstance(node.value, ast.List) else [node.value]
                elif isinstance(target, ast.Name):
                    add(target.id, *whole)
        elif isinstance(node, ast.ClassDef):
            marks = [*whole, *node.decorator_list]
            for base in node.bases:
                if isinstance(base, ast.Name) and base.id in suites:
                    for name in names_defined(suites[base.id]).all:
                        of, _, test = name.partition("::")
                        if of == base.id and test:
                            add(f"{node.name}::{test}", *marks)
            add(node.name, *marks)
            for each in node.body:
                if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
                    add(f"{node.name}::{each.name}", *marks, *each.decorator_list)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            add(node.name, *whole, *node.decorator_list)
    return Names(frozenset(names), frozenset(by_night))


def exists(test: str) -> bool:
    file, name = parts(test)
    return (ROOT / file).is_file() and (not name or name in names_defined(ROOT / file).all)


def runs_by_day(test: str) -> bool:
    """Whether a test that exists, or some test of the file, does."""
    file, name = parts(test)
    names = names_defined(ROOT / file)
    if name:
        return name not in names.by_night
    return any(each.rpartition("::")[2].startswith("test_") for each in names.all - names.by_night)


def parts(test: str) -> tuple[str, str]:
    """The file and the name, without parameters."""
    file, _, name = test.partition("::")
    return file, name.partition("[")[0]


@pytest.mark.parametrize("area", AREAS)
def test_the_mutants_of_an_area_can_be_planted(area: str) -> None:
    for mutant in AREAS[area]:
        source = (ROOT / mutant.file).read_text()
        assert mutant.plant(source) != source, mutant.id


@pytest.mark.parametrize("area", AREAS)
def test_the_tests_of_the_mutants_of_an_area_exist(area: str) -> None:
    for mutant in AREAS[area]:
        assert mutant.tests, mutant.id
        assert [test for test in mutant.tests if not exists(test)] == [], mutant.id


def test_the_tests_of_mutants_run_by_day() -> None:
    """What is left to the night leaves nobody behind who would notice such a bug before."""
    assert [(mutant.id, test) for mutant in MUTANTS for test in mutant.tests if not runs_by_day(test)] == []


def test_the_ids_of_mutants_are_unique() -> None:
    assert [name for name, times in Counter(mutant.id for mutant in MUTANTS).items() if times > 1] == []


def test_a_test_that_does_not_exist_is_noticed() -> None:
    here = "tests/core/plain/test_mutants.py"
    assert exists(here)
    assert exists(f"{here}::test_the_mutants_of_an_area_can_be_planted[status]")
    tables = "tests/spark/plain/test_delta_target.py::TestDelta"
    assert exists(f"{tables}::test_a_table_that_was_restored_takes_nothing_more"), "of a suite"
    assert not exists(f"{tables}::test_of_nothing")
    assert not exists(f"{here}::test_of_nothing")
    assert not exists("tests/core/plain/test_of_nothing.py")


def test_a_test_of_the_night_is_noticed() -> None:
    assert runs_by_day("tests/core/plain/test_mutants.py")
    assert runs_by_day("tests/core/plain/test_plan_machine.py::test_schedules_include_replays_and_rewinds")
    assert not runs_by_day("tests/core/plain/test_plan_machine.py::test_ranges_are_published_exactly_once")
    assert not runs_by_day("tests/spark/spark/test_spark_contract.py"), "all of a file"
    store = "tests/files/servers/test_object_target.py"
    assert runs_by_day(f"{store}::TestContract::test_killed_at_any_moment"), "of a suite"
    assert not runs_by_day(f"{store}::TestContract::test_two_members_write_at_once")
    assert not runs_by_day(f"{store}::TestContractAzure")
