"""Mutated record sets: both kernel sets and a third parser read them alike, and never outside their memory.

A share of what `make fuzz` runs. `KZCONSUMER_FUZZ_CASES` makes it longer, `KZCONSUMER_FUZZ_SEED` selects another seed.
"""

from __future__ import annotations

import ctypes
import os
import random
import signal
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from kzconsumer.records import batches
from kzconsumer.records import layout as L
from kzconsumer.records.compression import BadCompression, Scratch, decompress
from kzconsumer.records.kernel_loading import load_kernels
from kzconsumer.records.kernel_set import Cells, KernelSet, Table, Transactions
from kzconsumer.records.python_kernels import PYTHON_KERNELS
from tests.fuzz.mutations import mutate
from tests.fuzz.record_sets import GuardedScratch, differences, guarded, kernel_sets, seeds
from tests.fuzz.slices import ROOT, run_slice
from tests.support.extent import NIGHTLY, extent
from tests.support.record_sets import CODECS, compress

pytestmark = pytest.mark.long

CASES = int(os.environ.get("KZCONSUMER_FUZZ_CASES", extent("8000", "400000")))
SEED = int(os.environ.get("KZCONSUMER_FUZZ_SEED", extent("1", str(NIGHTLY))))


@pytest.fixture
def both(monkeypatch: pytest.MonkeyPatch) -> list[KernelSet]:
    monkeypatch.setattr(batches, "Scratch", GuardedScratch)  # and back afterwards
    return kernel_sets()


def test_mutated_record_sets_are_read_alike_by_all() -> None:
    outcome = run_slice("record-sets", CASES, SEED)
    assert outcome.crash is None, outcome.crash
    assert not outcome.misreads, outcome.misreads[0]
    kinds = outcome.kinds
    common = min(kinds["corrupt"], kinds["good"], kinds["rows"], 10 * kinds["hidden"], 4 * kinds["few"])
    assert common > CASES // 10, kinds


def test_mutated_bodies_are_decompressed_or_refused() -> None:
    rng = random.Random(SEED)
    text = b"some text, and some more. " * 40
    bodies = [(codec, number, compress(codec, text)) for codec, number in CODECS.items() if number]
    refused = 0
    for _ in range(CASES):
        codec, number, body = rng.choice(bodies)
        try:
            decompress(number, 1 if codec == "lz4-KAFKA-3160" else 2, memoryview(mutate(body, rng)), Scratch())
        except BadCompression:
            refused += 1
    assert CASES // 4 < refused < CASES


def test_control_a_kernel_that_misreads_is_found(both: list[KernelSet]) -> None:
    def wrong(table: Table, first: int, until: int, outputs: Cells, state: Cells) -> tuple[int, int, int]:
        table[first, L.FIRST_TIMESTAMP] += 1
        return both[0].read_batches(table, first, until, outputs, state)

    assert differences([both[0]._replace(read_batches=wrong)], 50, seed=1)[0]


def test_control_a_kernel_that_accepts_too_much_is_found(both: list[KernelSet]) -> None:
    def wrong(address: int, size: int, check: bool, table: Table, crcs: Any) -> tuple[int, int, int]:
        status, position, rows = both[0].scan(address, size, check, table, crcs)
        return (L.OK if status > L.TABLE_FULL else status), position, rows

    assert differences([both[0]._replace(scan=wrong)], 1000, seed=1)[0]


def test_control_a_kernel_that_forgets_a_marker_is_found(both: list[KernelSet]) -> None:
    def wrong(table: Table, rows: int, transactions: Transactions) -> tuple[int, int]:
        before = table[:rows, L.COUNT].copy()
        table[:rows, L.COUNT] = np.where(table[:rows, L.ATTRIBUTES] & L.CONTROL, 0, before)
        result = both[0].hide_aborted(table, rows, transactions)
        table[:rows, L.COUNT] = before
        return result

    assert differences([both[0]._replace(hide_aborted=wrong)], 1000, seed=1)[0]


@pytest.mark.parametrize(
    "fault", ["reads before", "reads behind", "writes behind", "reads behind a body", "transactions", "numba"]
)
def test_control_one_byte_outside_ends_the_process(fault: str) -> None:
    code = f"from tests.core.plain.test_record_fuzz import stray; stray({fault!r})"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == -signal.SIGSEGV, done.stderr


def stray(fault: str) -> None:
    """Run the harness with a kernel that writes one byte too far, over valid record sets only."""
    setattr(batches, "Scratch", GuardedScratch)  # noqa: B010
    kernels = PYTHON_KERNELS

    def hide_aborted(table: Table, rows: int, transactions: Transactions) -> tuple[int, int]:
        ctypes.string_at(transactions.ctypes.data, transactions.nbytes + 1)
        return kernels.hide_aborted(table, rows, transactions)

    def scan(address: int, size: int, check: bool, table: Table, crcs: Any) -> tuple[int, int, int]:
        ctypes.string_at(address - 1 if fault == "reads before" else address, size + 1)
        return kernels.scan(address, size, check, table, crcs)

    def read(table: Table, first: int, until: int, outputs: Cells, state: Cells) -> tuple[int, int, int]:
        if fault == "writes behind":
            ctypes.memset(int(outputs[L.O_VALUES]) + int(state[L.S_BYTE_CAPACITY]), 0, 1)
        elif table[first, L.ATTRIBUTES] & L.CODEC_MASK:
            ctypes.string_at(int(table[first, L.ADDRESS]), int(table[first, L.LENGTH]) + 1)
        return kernels.read_batches(table, first, until, outputs, state)

    changes: dict[str, Any] = {"reads before": {"scan": scan}, "reads behind": {"scan": scan}}
    if fault == "numba":
        loaded = load_kernels()
        # The kernel gets a length that is 20 bytes too large: not empty, and enough to read the size of a next batch.
        changes["numba"] = {"scan": lambda at, size, *rest: loaded.scan(at, size + 20, *rest)}
    changes["transactions"] = {"hide_aborted": hide_aborted}
    differences([guarded(kernels._replace(**changes.get(fault, {"read_batches": read})))], len(seeds()), seed=1)
