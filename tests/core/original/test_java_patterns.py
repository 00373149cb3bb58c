"""White lists that may be registered, compared with Java's own reader of expressions."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from kzconsumer.settings.value_readers import Include
from kzconsumer_sandbox.servers.jars import find_java
from tests.support.extent import extent, seeds
from tests.support.py4j_gateway import java_gateway

_NAMES = "a b A 0 1 - _ . ab aa a1 a- Ab aaa a.b k S aab .. --"
_PARTS = (
    r"a b A 0 1 - _ . & ~ # $ ^ | * + ? [ ] [^ [a- [a] ( ) (? : = ! > < P i m s u x (?: (?i) (?= (?> (a) && { "
    r"} {2} {3 {1,2} -- || \ \d \W \b \x41 \0 \1 \[ \-"
)


@pytest.fixture(scope="module")
def jvm() -> Iterator[Any]:
    with java_gateway(find_java()) as gateway:
        yield gateway.jvm


@pytest.mark.parametrize("seed", seeds(1, 20))
def test_a_list_that_may_be_registered_means_the_same_in_java(jvm: Any, seed: int) -> None:
    chance, names, parts = random.Random(seed), _NAMES.split(), [*_PARTS.split(), "\t"]
    compared = 0
    while compared < extent(400, 5000):
        text = "".join(chance.choices(parts, k=chance.randint(1, 8)))
        try:
            topics = Include(text)
            topics.portable()
            ours = [name for name in names if topics.allows(name)]
        except ValueError:
            continue
        pattern = jvm.java.util.regex.Pattern.compile(topics.regex)  # raises for what Java cannot read
        assert [name for name in names if pattern.matcher(name).matches()] == ours, topics
        compared += 1
