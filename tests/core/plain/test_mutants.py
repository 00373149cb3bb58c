"""The planted bugs fit the code and the tests as they are; `make mutants` plants them."""

from __future__ import annotations

import ast
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from tests.mutants.mutant import ROOT, Mutant, areas, every

MUTANTS = list(every(areas()))


@cache
def names_defined(file: Path) -> frozenset[str]:
    """Tests, classes of tests as `Class` and `Class::test`, and state machines, which are assigned."""
    names = set()
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.ClassDef):
            tests = [each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
            names |= {node.name} | {f"{node.name}::{test.name}" for test in tests}
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
    return frozenset(names)


def exists(test: str) -> bool:
    file, _, name = test.partition("::")
    name = name.partition("[")[0]
    return (ROOT / file).is_file() and (not name or name in names_defined(ROOT / file))


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.id)
def test_a_mutant_can_be_planted(mutant: Mutant) -> None:
    source = (ROOT / mutant.file).read_text()
    planted = mutant.plant(source)
    assert planted != source
    if mutant.file.endswith(".py"):
        ast.parse(planted)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.id)
def test_the_tests_of_a_mutant_exist(mutant: Mutant) -> None:
    assert mutant.tests
    assert [test for test in mutant.tests if not exists(test)] == []


def test_the_ids_of_mutants_are_unique() -> None:
    assert [name for name, times in Counter(mutant.id for mutant in MUTANTS).items() if times > 1] == []


def test_a_test_that_does_not_exist_is_noticed() -> None:
    here = "tests/core/plain/test_mutants.py"
    assert exists(here)
    assert exists(f"{here}::test_a_mutant_can_be_planted[T1]")
    assert not exists(f"{here}::test_of_nothing")
    assert not exists("tests/core/plain/test_of_nothing.py")
