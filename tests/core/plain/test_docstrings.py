"""The interface for applications: the docstrings, of which the reference of the site is made, describe all of it.

Errors that any docstring names exist.
"""

from __future__ import annotations

import builtins
import inspect
import re
from pathlib import Path

import pytest

import kzconsumer
from kzconsumer.errors import KzConsumerError

CLASSES = [each for name in kzconsumer.__all__ if inspect.isclass(each := getattr(kzconsumer, name))]
API = [kzconsumer.ConsumerConnector, kzconsumer.KafkaStream, kzconsumer.RebalanceListener]


def documented(found: object) -> bool:
    return bool((getattr(found, "__doc__", None) or "").strip())


@pytest.mark.parametrize("name", [name for name in kzconsumer.__all__ if name != "__version__"])
def test_every_name_has_a_docstring(name: str) -> None:
    assert documented(getattr(kzconsumer, name))


@pytest.mark.parametrize("owner", API, ids=lambda each: each.__name__)
def test_every_method_has_a_docstring(owner: type) -> None:
    methods = {name: each for name, each in vars(owner).items() if inspect.isfunction(each) and name[0] != "_"}
    assert methods
    assert [name for name, each in methods.items() if not documented(each)] == []


def test_every_error_has_the_base_class() -> None:
    errors = [each for each in CLASSES if issubclass(each, Exception)]
    assert len(errors) > 15
    assert all(issubclass(each, KzConsumerError) and each.__name__.endswith("Error") for each in errors)


def test_errors_that_docstrings_name_exist() -> None:
    """A class that is renamed leaves its former name in the docstrings of its callers."""
    root = Path(kzconsumer.__file__).parents[1]
    known, named = set(dir(builtins)), set[str]()
    for file in (*root.glob("kzconsumer/**/*.py"), *root.glob("plugins/*/kzconsumer_*/**/*.py")):
        text = file.read_text()
        known.update(re.findall(r"^ *class (\w+)", text, re.MULTILINE))
        for found in re.findall(r"Raises ([A-Z]\w+(?:,\s+[A-Z]\w+)*)", text):
            named.update(re.split(r",\s+", found))
    assert len(named) > 30
    assert named - known == {"CommitFailedException"}, "that is of pyiceberg"
