"""The planted bugs fit the code and the tests as they are; `make mutants` plants them."""

from __future__ import annotations

import ast
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from tests.mutants.mutant import ROOT, areas, every

AREAS = areas()
MUTANTS = list(every(AREAS))


@cache
def names_defined(file: Path) -> frozenset[str]:
    """Tests, classes of tests as `Class` and `Class::test`, and state machines, which are assigned.

    A class also has the tests of a base that it imports from `tests`.
    """
    names, suites = set(), dict[str, Path]()
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tests."):
            suites |= {each.name: ROOT.joinpath(*str(node.module).split(".")).with_suffix(".py") for each in node.names}
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.ClassDef):
            tests = {each.name for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}
            for base in node.bases:
                if isinstance(base, ast.Name) and base.id in suites:
                    inherited = (name.partition("::") for name in names_defined(suites[base.id]))
                    tests |= {test for of, _, test in inherited if of == base.id and test}
            names |= {node.name} | {f"{node.name}::{test}" for test in tests}
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
    return frozenset(names)


def exists(test: str) -> bool:
    file, _, name = test.partition("::")
    name = name.partition("[")[0]
    return (ROOT / file).is_file() and (not name or name in names_defined(ROOT / file))


@pytest.mark.parametrize("area", AREAS)
def test_the_mutants_of_an_area_can_be_planted(area: str) -> None:
    for mutant in AREAS[area]:
        source = (ROOT / mutant.file).read_text()
        planted = mutant.plant(source)
        assert planted != source, mutant.id
        if mutant.file.endswith(".py"):
            ast.parse(planted, mutant.id)


@pytest.mark.parametrize("area", AREAS)
def test_the_tests_of_the_mutants_of_an_area_exist(area: str) -> None:
    for mutant in AREAS[area]:
        assert mutant.tests, mutant.id
        assert [test for test in mutant.tests if not exists(test)] == [], mutant.id


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
