"""Bugs that a program makes: which, how they are sampled, and that the tests of a line judge them."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.audit import c_operators
from tests.audit.__main__ import judge
from tests.audit.marks import _MARKED, Marks
from tests.audit.operators import Mutation, mutations
from tests.audit.reach import STARTS, Reach, record
from tests.audit.recorder import SUFFIX, Recording
from tests.audit.report import diffs
from tests.audit.rooms import DECODER, FOLDERS, OUTSIDE, bugs_of, rooms
from tests.audit.sample import draw, interval
from tests.mutants.mutant import ROOT
from tests.mutants.tree import Tree
from tests.support.extent import extent, only_nightly


def planted(statement: str) -> dict[str, list[str]]:
    """What becomes of a statement, by operator."""
    source = f"def f(self, a, b, items):\n    {statement}\n"
    made: dict[str, list[str]] = {}
    for each in mutations("f.py", source):
        made.setdefault(each.operator, []).append(each.plant(source).splitlines()[1].strip())
    return made


@pytest.mark.parametrize(
    ("statement", "operator", "expected"),
    [
        ("x = a < b", "comparison", ["x = a <= b"]),
        ("x = a is not b", "comparison", ["x = a is b"]),
        ("x = a not  in b", "comparison", ["x = a in b"]),
        ("x = a < 3", "constant", ["x = a < 2", "x = a < 4"]),
        ("x = a + b", "arithmetic", ["x = a - b"]),
        ("x = a and b", "and, or", ["x = a or b"]),
        ("x = a and b", "operand removed", ["x = (a)", "x = (b)"]),
        ("x = a and (y := b)", "operand removed", ["x = ((y := b))", "x = (a)"]),
        ("x = not a", "not removed", ["x = (a)"]),
        ("x = a if b else items", "branches swapped", ["x = items if b else a"]),
        ("x = min(a, b)", "another function", ["x = max(a, b)"]),
        ("x = g(a, b)", "arguments swapped", ["x = g(b, a)"]),
        ("x = g(a, key=b)", "argument removed", ["x = g(a)"]),
        ("x = items[0]", "last for first", ["x = items[-1]"]),
        ("x = items[a:b]", "bound of a slice removed", ["x = items[:b]", "x = items[a:]"]),
        ("x = [i for i in items if i]", "filter removed", ["x = [i for i in items if True]"]),
        ("self.x = a", "statement removed", ["pass"]),
        ("self.go()", "statement removed", ["pass"]),
        ("return a", "returns None", ["return None"]),
        ("if a: self.go()", "condition negated", ["if not (a): self.go()"]),
    ],
)
def test_slips(statement: str, operator: str, expected: list[str]) -> None:
    assert planted(statement)[operator] == expected


@pytest.mark.parametrize(
    "statement",
    [
        '"""a < b and c"""',
        'log.info("sent", count=1)',
        "import a",
        "assert a < b",
        'x = f"{a + 1}"',
        'raise ValueError("a < b", 1 + 2) if False else None',
    ],
)
def test_texts_are_left_alone(statement: str) -> None:
    assert set(planted(statement)) <= {"statement removed"}


def test_what_an_import_executes_is_in_no_function() -> None:
    source = "A = 1\n\n\nclass C:\n    B = 2\n\n    def f(self, a=3):\n        return a + 4\n"
    functions = {each.before: each.function for each in mutations("f.py", source) if each.operator == "constant"}
    assert functions == {"1": "", "2": "", "3": "", "4": "C.f"}


def test_arguments_whose_order_does_not_matter_are_not_swapped() -> None:
    assert "arguments swapped" not in planted("x = min(a, b)")


def test_every_bug_of_a_room_can_be_parsed() -> None:
    for bug in bugs_of(ROOT, "streams")[:: extent(4, 1)]:
        compile(bug.plant((ROOT / bug.file).read_text()), bug.file, "exec")


def test_every_room_has_bugs() -> None:
    assert [room for room in list(rooms())[:: extent(4, 1)] if not bugs_of(ROOT, room)] == []


def test_no_module_of_the_member_is_forgotten() -> None:
    there = {each.stem for each in (ROOT / "kzconsumer").iterdir() if each.suffix == ".py" or each.is_dir()}
    rooms_of_it = {Path(folder).stem for folder in FOLDERS.values() if folder.startswith("kzconsumer/")}
    assert rooms_of_it | set(OUTSIDE) == {each for each in there if not each.startswith("_")}
    assert not rooms_of_it & set(OUTSIDE)


def test_a_bug_of_another_source_is_not_planted() -> None:
    (bug, *_) = mutations("f.py", "def f(a):\n    return a < 1\n")
    with pytest.raises(ValueError, match="is not what it was"):
        bug.plant("def f(a):\n    return 2 > a\n")


def test_slips_in_c() -> None:
    source = '/* if (a < b) */\nstatic int f(void) {\n    if (at + 4 > end && !open)\n        fail("<");\n}\n'
    made = {
        (each.operator, each.plant(source).splitlines()[2].strip()) for each in c_operators.mutations("f.c", source)
    }
    assert made >= {
        ("comparison", "if (at + 4 >= end && !open)"),
        ("arithmetic", "if (at - 4 > end && !open)"),
        ("constant", "if (at + 5 > end && !open)"),
        ("and, or", "if (at + 4 > end || !open)"),
        ("not removed", "if (at + 4 > end && open)"),
    }
    assert {each.first for each in c_operators.mutations("f.c", source)} == {3, 4}


def test_statements_of_c_that_are_removed() -> None:
    """Whole ones: not what a line continues. Jumps as well, but for the last `return`."""
    source = """static int f(int a) {
    int64_t c, d[4];
    int b = g(a);
    if (a)
        return b;
    while (h(a,
             b))
        break;
    k(a,
      b);
    return a;
}
"""
    made = c_operators.mutations("f.c", source)
    assert {each.before for each in made if each.operator == "statement removed"} == {"return b;", "break;"}
    assert 2 not in {each.first for each in made}, "a declaration"


def slip(line: int, name: str = "comparison") -> Mutation:
    return Mutation("f.py", name, "f", line, line, line, "<", name)


def test_a_sample_is_repeated_by_its_seed() -> None:
    bugs = {"streams": [slip(line) for line in range(100)]}
    assert draw(bugs, 10, seed=1) == draw(bugs, 10, seed=1) != draw(bugs, 10, seed=2)
    assert len({bug.first for _, bug in draw(bugs, 10, seed=1)}) == 10


def test_a_statement_of_many_bugs_is_as_likely_as_one_of_few() -> None:
    bugs = {"streams": [*(slip(1, str(number)) for number in range(99)), slip(2)]}
    drawn = Counter(bug.first for seed in range(400) for _, bug in draw(bugs, 1, seed))
    assert 150 < drawn[1] < 250


@pytest.mark.parametrize(
    ("caught", "of", "expected"),
    [(26, 49, (0.394, 0.663)), (0, 10, (0.0, 0.278)), (10, 10, (0.722, 1.0)), (0, 0, (0, 1))],
)
def test_the_interval_of_a_rate(caught: int, of: int, expected: tuple[float, float]) -> None:
    """The values of `scipy.stats.binomtest(...).proportion_ci(method="wilson")`."""
    assert interval(caught, of) == pytest.approx(expected, abs=0.001)


def test_statements_that_are_executed_are_marked(tmp_path: Path) -> None:
    source = """'''Text.'''
from __future__ import annotations
class C:
    def f(self, a):
        try:
            if a < 1:
                return 1 // a
            elif a > 5:
                return 6
        except ArithmeticError:
            a = 7
        match a:
            case 7:
                return lambda: 8
            case _:
                pass
"""
    marks = Marks(tmp_path, ["p"])
    values: dict[str, Any] = {_MARKED: marks.marked}
    exec(marks.compile(source.encode(), str(tmp_path / "p" / "m.py")), values)

    def taken() -> list[int]:
        return sorted({line for executed, (_, line) in zip(marks.take(), marks.places, strict=True) if executed})

    assert taken() == [3, 4]
    assert values["C"]().f(6) == 6
    assert taken() == [5, 6, 8, 9]
    later = values["C"]().f(0)
    assert taken() == [5, 6, 7, 10, 11, 12, 14]
    assert later() == 8
    assert taken() == [14]
    assert {file for file, _ in marks.places} == {"p/m.py"}
    assert values["C"].f.__code__.co_firstlineno == 4


def reach_of(folder: Path, seconds: dict[str, float], executed: dict[str, bytes]) -> Reach:
    """Of tests that execute lines 7 and 8 of f.py: 1 for each that they do."""
    recording = Recording(
        [("f.py", 7), ("f.py", 8)], seconds, {test: zlib.compress(marks) for test, marks in executed.items()}
    )
    (folder / f"1{SUFFIX}").write_bytes(msgspec.msgpack.encode(recording))
    return Reach(folder)


def test_the_quickest_of_each_module_comes_first(tmp_path: Path) -> None:
    a, b, c = ("tests/a/plain/a.py", "tests/a/plain/b.py", "tests/a/plain/c.py")
    seconds = {f"{a}::1": 1.0, f"{a}::2": 2.0, f"{b}::1": 3.0, f"{b}::2": 4.0, f"{c}::1": 90.0}
    reach = reach_of(tmp_path, seconds, dict.fromkeys(seconds, b"\1"))
    assert reach.tests_of(slip(7), budget=7) == [([f"{a}::1", f"{b}::1", f"{a}::2"], 6.0)]
    of_the_import = msgspec.structs.replace(slip(9), function="")
    assert reach.tests_of(of_the_import, budget=7) == [([f"{a}::1", f"{a}::2", f"{b}::1"], 6.0)], "as many as possible"
    imported_by_one = msgspec.structs.replace(slip(7), function="")
    assert reach.tests_of(imported_by_one, budget=7) == reach.tests_of(of_the_import, budget=7), "who reads it?"


@pytest.mark.parametrize(("of_line_8", "kinds"), [("plain", {"plain"}), ("spark", {"plain", "spark"})])
def test_spark_judges_modules_of_which_plain_tests_do_not_execute_all(
    tmp_path: Path, of_line_8: str, kinds: set[str]
) -> None:
    tests = {kind: f"tests/a/{kind}/t.py::1" for kind in ("spark", "servers", "plain")}
    executed = {test: bytes([1, kind in ("spark", of_line_8)]) for kind, test in tests.items()}
    reach = reach_of(tmp_path, dict.fromkeys(executed, 1.0), executed)
    judges = reach.tests_of(slip(7), budget=7)
    assert [test for judging, _ in judges for test in judging] == [tests[kind] for kind in STARTS if kind in kinds]
    assert [seconds for _, seconds in judges] == [STARTS[kind] + 1 for kind in STARTS if kind in kinds]
    assert reach.tests_of(slip(9), budget=7) == []


def test_who_imports_a_constant_judges_its_bugs(tmp_path: Path) -> None:
    """Reading it executes no line of its file."""
    file, reads = (
        "kzconsumer/brokers/protocol/error_codes.py",
        "tests/core/plain/test_protocol_primitives.py::test_constants",
    )
    seconds = {reads: 0.01, "tests/core/plain/test_clock.py::test_now": 0.01}
    (tmp_path / f"1{SUFFIX}").write_bytes(msgspec.msgpack.encode(Recording([], seconds)))
    bug = next(each for each in mutations(file, (ROOT / file).read_text()) if each.operator == "constant")
    assert Reach(tmp_path).tests_of(bug, budget=60) == [([reads], 0.01)]


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Tree]:
    with Tree(tmp_path / "copy") as copy:
        yield copy


@only_nightly
def test_the_tests_of_a_line_judge_its_bugs(tree: Tree, tmp_path: Path) -> None:
    """In a copy of the tree, with the tests of one assignor, in two processes as is usual."""
    reach = record(tree, tmp_path / "reach", ["tests/core/plain/test_assignors.py"], jobs=2)
    file = "kzconsumer/assignors.py"
    source = (ROOT / file).read_text()
    (bug,) = [each for each in mutations(file, source) if each.before == "<"]
    ((tests, seconds),) = reach.tests_of(bug, budget=60)
    assert tests
    assert seconds < 60
    caught = judge(tree, "assignors", bug, reach, budget=60)
    assert caught.caught
    assert caught.by.startswith("tests/core/plain/test_assignors.py::")
    assert (tree.root / file).read_text() == source

    harmless = Mutation(file, "none", "", bug.first, bug.last, bug.start, "<", " < ")
    survived = judge(tree, "assignors", harmless, reach, budget=60)
    assert not survived.caught
    assert "+" in diffs([survived], ROOT)

    endless = Mutation(file, "none", "", bug.first, bug.last, len(source) - 1, "\n", "\nwhile True:\n    pass\n")
    with tree.planted(endless):
        assert tree.run(tests, 60, processor=0).failed == ["not finished after 60 s, or 0 of processor time"]

    (unreached, *_) = bugs_of(ROOT, "streams")
    assert judge(tree, "streams", unreached, reach, budget=60).by == "no test reaches it"
    assert DECODER in rooms()
