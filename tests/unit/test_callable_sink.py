"""The callable sink: which references it takes, and what becomes of the function's errors."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest

from kzconsumer.errors import ConfigError, SinkFailed
from kzconsumer.sinks.callable_sink import CallableSink
from kzconsumer.sinks.function_reference import load_function
from kzconsumer.sinks.interface import Batch, SinkContext
from tests.support.range_data import range_data

CONTEXT = SinkContext(group="g", member="m", cluster="", safe_until=lambda: math.inf)
SEEN: list[Batch] = []


async def keep(batch: Batch) -> None:
    SEEN.append(batch)


async def refuse(batch: Batch) -> None:
    raise ValueError("no room")


class Keeper:
    async def __call__(self, batch: Batch) -> None:
        SEEN.append(batch)


keeper = Keeper()


def plain(batch: Batch) -> None: ...


def sink(name: str) -> CallableSink:
    return CallableSink({"function": f"{__name__}:{name}"}, CONTEXT)


@pytest.mark.parametrize("name", ["keep", "keeper"])
async def test_the_function_gets_the_batch(name: str) -> None:
    batch = Batch((range_data("t", 0, 0, 3),))
    async with sink(name) as entered:
        await entered.write(batch)
    assert SEEN.pop() is batch


async def test_what_the_function_raises_is_a_failed_sink() -> None:
    async with sink("refuse") as entered:
        with pytest.raises(SinkFailed, match="refuse raised ValueError: no room"):
            await entered.write(Batch((range_data("t", 0, 0, 3),)))


@pytest.mark.parametrize(
    ("reference", "fault"),
    [
        ("plain", "is not an async function"),
        ("refsue", "has no refsue; did you mean refuse?"),
        ("SEEN", "is a list, not a function"),
    ],
)
def test_what_is_no_async_function_is_a_fault(reference: str, fault: str) -> None:
    with pytest.raises(ConfigError) as caught:
        sink(reference)
    (line,) = caught.value.faults
    assert line.startswith("[sink.options] function: ")
    assert line.endswith(fault)


@pytest.mark.parametrize(
    ("reference", "fault"),
    [
        ("json", '"json" is not "module:function"'),
        (":dumps", '":dumps" is not "module:function"'),
        ("no_such_module_here:f", "cannot import no_such_module_here: ModuleNotFoundError: No module named"),
    ],
)
def test_a_reference_that_leads_nowhere_is_one_line(reference: str, fault: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_function(reference, "where")
    (line,) = caught.value.faults
    assert line.startswith(f"where: {fault}")


def test_the_current_directory_is_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "beside_the_settings.py").write_text("def f(): return 5\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    assert load_function("beside_the_settings:f", "where")() == 5
