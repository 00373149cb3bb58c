"""White lists that may be registered, compared with Java's own reader of expressions."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

from kzconsumer.settings.value_readers import Include
from kzconsumer_sandbox.servers.configuration import QUICK_START
from kzconsumer_sandbox.servers.jars import find_java
from tests.support.extent import extent, seeds

_NAMES = (
    "a",
    "b",
    "A",
    "0",
    "1",
    "-",
    "_",
    ".",
    "ab",
    "aa",
    "a1",
    "a-",
    "Ab",
    "aaa",
    "a.b",
    "k",
    "S",
    "aab",
    "..",
    "--",
)
_PARTS = (
    *(
        "a",
        "b",
        "A",
        "0",
        "1",
        "-",
        "_",
        ".",
        "&",
        "~",
        "#",
        "$",
        "^",
        "|",
        "*",
        "+",
        "?",
        "[",
        "]",
        "[^",
        "[a-",
        "[a]",
    ),
    *("(", ")", "(?", ":", "=", "!", ">", "<", "P", "i", "m", "s", "u", "x", "(?:", "(?i)", "(?=", "(?>", "(a)", "&&"),
    *("{", "}", "{2}", "{3", "{1,2}", "--", "||", "\t", "\\", r"\d", r"\W", r"\b", r"\x41", r"\0", r"\1", r"\[", r"\-"),
)


@pytest.fixture(scope="module")
def jvm() -> Iterator[Any]:
    (jar,) = (Path(pyspark.__file__).parent / "jars").glob("py4j-*.jar")
    port, token, process = launch_gateway(
        java_path=str(find_java()),
        javaopts=[*QUICK_START],
        jarpath=str(jar),
        die_on_exit=True,
        enable_auth=True,
        return_proc=True,
    )
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auth_token=token))
    try:
        yield gateway.jvm
    finally:
        gateway.shutdown()
        process.kill()
        process.wait()  # its output is read, and closed, by a thread of py4j
        process.stdin.close()


@pytest.mark.parametrize("seed", seeds(1, 20))
def test_a_list_that_may_be_registered_means_the_same_in_java(jvm: Any, seed: int) -> None:
    chance = random.Random(seed)
    compared = 0
    while compared < extent(400, 5000):
        text = "".join(chance.choices(_PARTS, k=chance.randint(1, 8)))
        try:
            topics = Include(text)
            topics.portable()
            ours = [name for name in _NAMES if topics.allows(name)]
        except ValueError:
            continue
        pattern = jvm.java.util.regex.Pattern.compile(topics.regex)  # raises for what Java cannot read
        assert [name for name in _NAMES if pattern.matcher(name).matches()] == ours, topics
        compared += 1
