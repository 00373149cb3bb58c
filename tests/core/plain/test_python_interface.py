"""python_interface.txt and the code declare the same interface, so that none of it changes unnoticed."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from pathlib import Path
from typing import ForwardRef

import pytest

import kzconsumer
from kzconsumer.errors import KzConsumerError

ROOT = Path(__file__).parents[3]
DECLARED = ast.parse(Path(__file__).with_name("python_interface.txt").read_text()).body
CLASSES = {node.name: node for node in DECLARED if isinstance(node, ast.ClassDef) and not node.name.endswith("Error")}
(CONNECT,) = (node for node in DECLARED if isinstance(node, ast.FunctionDef))
ERRORS = {node.name for node in DECLARED if isinstance(node, ast.ClassDef)} - set(CLASSES)

COMPILED = {
    (owner.name, node.name): ast.unparse(node.returns)
    for owner in ast.parse((ROOT / "kzconsumer/records/_native.pyi").read_text()).body
    if isinstance(owner, ast.ClassDef)
    for node in owner.body
    if isinstance(node, ast.FunctionDef) and node.returns
}

# Methods that the member calls, and those that only tests of applications need.
NOT_DECLARED = {
    "KafkaStream": {"checkpoint", "close", "drop", "error", "pause", "resume"},
    "TopicPartition": {"of"},
}
# Tables and filters have more attributes than applications use.
PARTLY_DECLARED = {"Exclude", "Include", "Settings"}


def signature(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    return f"({ast.unparse(node.args)}) -> {ast.unparse(node.returns) if node.returns else None}"


def signature_in_code(function: object) -> str:
    found = function.__func__ if isinstance(function, classmethod) else function
    source = textwrap.dedent(inspect.getsource(inspect.unwrap(found)))  # type: ignore[arg-type]
    (node,) = ast.parse(source).body
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    return signature(node)


def annotation_in_code(owner: type, field: str) -> str:
    static = inspect.getattr_static(owner, field)
    if (owner.__name__, field) in COMPILED:
        return COMPILED[owner.__name__, field]
    found = static.fget.__annotations__["return"] if isinstance(static, property) else owner.__annotations__[field]
    return found.__forward_arg__ if isinstance(found, ForwardRef) else str(found)


def test_every_public_name_is_declared() -> None:
    assert {*CLASSES, *ERRORS, CONNECT.name} == set(kzconsumer.__all__)
    assert all(issubclass(getattr(kzconsumer, name), KzConsumerError) for name in ERRORS)


def test_connect_is_as_declared() -> None:
    assert signature(CONNECT) == signature_in_code(kzconsumer.connect)


@pytest.mark.parametrize("name", CLASSES)
def test_a_class_is_as_declared(name: str) -> None:
    found = getattr(kzconsumer, name)
    declared = set()
    for node in CLASSES[name].body:
        if isinstance(node, ast.AnnAssign):
            field = ast.unparse(node.target)
            assert ast.unparse(node.annotation) == annotation_in_code(found, field), field
        else:
            assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            field = node.name
            assert signature(node) == signature_in_code(inspect.getattr_static(found, field)), field
        declared.add(field)
    if name not in PARTLY_DECLARED:
        public = {each for each in vars(found) if not each.startswith("_")} - NOT_DECLARED.get(name, set())
        assert {each for each in declared if not each.startswith("_")} == public


@pytest.mark.parametrize("name", ["ConsumerConnector", "KafkaStream", "connect"])
def test_every_error_that_a_docstring_names_is_exported(name: str) -> None:
    found = getattr(kzconsumer, name)
    texts = [found, *(vars(found).values() if inspect.isclass(found) else ())]
    named = {error for each in texts for error in re.findall(r"\b[A-Z]\w+Error\b", inspect.getdoc(each) or "")}
    assert named - {"RuntimeError", "TypeError", "ValueError"} <= set(kzconsumer.__all__)


def test_tab_shows_the_public_names() -> None:
    """`dir` is what completion asks. Private names and submodules are not shown."""
    assert dir(kzconsumer) == sorted([*kzconsumer.__all__, "__version__"])
