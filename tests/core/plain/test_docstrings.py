"""The interface for applications: the docstrings, of which the reference of the site is made, describe all of it."""

from __future__ import annotations

import inspect

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
