"""Mutated record sets: the decoder reads them as the oracle does, and never outside their memory.

A slice of what `make fuzz` runs. `KZCONSUMER_FUZZ_CASES` makes it longer, `KZCONSUMER_FUZZ_SEED` another.
"""

from __future__ import annotations

import ctypes
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from kzconsumer.records import decode as decoder
from kzconsumer.records.compression import BadCompression, Scratch, decompress
from kzconsumer.records.decode import Decoded
from tests.fuzz import guided, sanitized
from tests.fuzz.mutations import mutate
from tests.fuzz.record_sets import Decode, GuardedScratch, decode_unchecked, differences, guard_bodies, seeds
from tests.fuzz.slices import ROOT, run_slice
from tests.support.extent import NIGHTLY, extent, only_nightly
from tests.support.programs import CLANG, give_up
from tests.support.record_sets import CODECS, compress

CASES = int(os.environ.get("KZCONSUMER_FUZZ_CASES", extent("4000", "400000")))
SEED = int(os.environ.get("KZCONSUMER_FUZZ_SEED", extent("1", str(NIGHTLY))))


def test_good_record_sets_are_read_as_by_the_oracle() -> None:
    found, kinds = differences(decode_unchecked, len(seeds()), seed=1)
    assert not found, found[0]
    assert min(kinds["good"], kinds["rows"], 10 * kinds["hidden"]) > len(seeds()) // 2, kinds


@pytest.mark.long
def test_mutated_record_sets_are_read_as_by_the_oracle() -> None:
    outcome = run_slice("record-sets", CASES, SEED)
    assert outcome.crash is None, outcome.crash
    assert not outcome.misreads, outcome.misreads[0]
    kinds = outcome.kinds
    common = min(kinds["corrupt"], kinds["good"], kinds["rows"], 10 * kinds["hidden"])
    assert common > CASES // 10, kinds


@pytest.mark.long
def test_lengths_that_reach_the_end_are_read_as_by_the_oracle() -> None:
    outcome = run_slice("limits", 1, SEED)
    assert outcome.crash is None, outcome.crash
    assert not outcome.misreads, outcome.misreads[0]
    assert min(outcome.kinds["corrupt"], outcome.kinds["good"]) > 1000, outcome.kinds


@pytest.mark.long
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


def shifted(records: memoryview, start: int, aborted: Sequence[tuple[int, int]]) -> Decoded:
    """Loses the first record."""
    decoded = decode_unchecked(records, start, aborted)
    return msgspec.structs.replace(decoded, records=decoded.records.slice(1))


def tolerant(records: memoryview, start: int, aborted: Sequence[tuple[int, int]]) -> Decoded:
    """Accepts what is corrupt."""
    return msgspec.structs.replace(decode_unchecked(records, start, aborted), corrupt=None)


def forgetful(records: memoryview, start: int, aborted: Sequence[tuple[int, int]]) -> Decoded:
    """Does not know of the first aborted transaction."""
    return decode_unchecked(records, start, aborted[1:])


@pytest.mark.long
@pytest.mark.parametrize("wrong", [shifted, tolerant, forgetful])
def test_control_a_decoder_that_misreads_is_found(wrong: Decode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder, "Scratch", GuardedScratch)
    assert differences(wrong, 1000, seed=1)[0]


@pytest.mark.long
@pytest.mark.parametrize("fault", ["reads before", "reads behind", "reads behind a body"])
def test_control_one_byte_outside_ends_the_process(fault: str) -> None:
    code = f"from tests.core.plain.test_record_fuzz import stray; stray({fault!r})"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == -signal.SIGSEGV, done.stderr


class LongerScratch(GuardedScratch):
    """Says of each body that it has 20 bytes more than it has: enough for the size of a next message."""

    def keep(self, size: int) -> memoryview:
        return longer(super().keep(size), 0, 20)


def longer(view: memoryview, before: int, behind: int) -> memoryview:
    """The bytes of a view and those around it."""
    address = ctypes.addressof(ctypes.c_char.from_buffer(view)) - before
    return memoryview((ctypes.c_char * (before + len(view) + behind)).from_address(address)).cast("B")


def stray(fault: str) -> None:
    """Run the harness with a decoder that gets a length beyond its bytes, over good record sets only."""
    guard_bodies()
    if fault == "reads behind a body":
        setattr(decoder, "Scratch", LongerScratch)  # noqa: B010

    def decode(records: memoryview, start: int, aborted: Sequence[tuple[int, int]]) -> Decoded:
        if fault == "reads before":
            records = longer(records, 20, 0)
        elif fault == "reads behind":
            records = longer(records, 0, 20)
        return decode_unchecked(records, start, aborted)

    differences(decode, len(seeds()), seed=1)


PLANTED = {
    "a field that does not fit its column": ("columns.h", "field.size > binary->room - binary->used", "false"),
    "a shift into the sign": ("varints.h", "(uint32_t)at[0] << 24", "at[0] << 24"),
}


# Each is built with sanitizers, which takes three seconds; without them the guarded memory above is what finds faults.
@only_nightly
@pytest.mark.parametrize("name", PLANTED)
def test_control_sanitizers_find_what_is_planted(name: str, tmp_path: Path) -> None:
    planted(tmp_path, PLANTED[name])
    variables = sanitized.build(tmp_path, tmp_path)
    if variables is None:
        pytest.skip("the C compiler here has no sanitizers")
    outcome = run_slice("record-sets", 2000, 1, variables=variables)
    assert outcome.crash is not None
    assert re.search("AddressSanitizer|runtime error", outcome.crash)


MISREAD = {
    "a key, value or header of -2": ("varints.h", "size < -1 || size > end - at", "size < -2 || size > end - at"),
    "a field one byte too long": ("varints.h", "size < -1 || size > end - at", "size < -1 || size > end - at + 1"),
    "a record one byte too long": (
        "record_batches.c",
        "SMALLEST_RECORD - 1 || size >",
        "SMALLEST_RECORD - 1 || size - 1 >",
    ),
    "headers of a negative number": ("record_batches.c", "if (count < 0 ||", "if ("),
    "a header without name": ("record_batches.c", "== NULL || key.data == NULL", "== NULL"),
    "an offset behind the last": ("record_batches.c", "> last_delta", "> last_delta + 1"),
    "a marker's key that is too short": ("record_batches.c", "key.size < TYPE_END", "key.size < TYPE_END - 1"),
    "a marker one byte too long": ("record_batches.c", "size < 1 || size > end", "size < 1 || size - 1 > end"),
    "a message's key of -2": ("framing.c", "key_size < -1 ||", "key_size < -2 ||"),
    "a message's value of -2": ("framing.c", "if (size < -1 || (size < 0 ?", "if (size < -2 || (size < 0 ?"),
    "a message one byte too long": ("framing.c", "if (size > batches->size", "if (size - 1 > batches->size"),
    "an inner key of -2": (
        "message_sets.c",
        "if (size < -1 || size > end - at - 4)",
        "if (size < -2 || size > end - at - 4)",
    ),
    "an inner value of -2": ("message_sets.c", "if (size < -1 || (size < 0", "if (size < -2 || (size < 0"),
    "an inner message one byte too long": ("message_sets.c", "if (size > end - at -", "if (size - 1 > end - at -"),
}
"""Of each length field, what a slip makes of it. Where two checks refuse a length, either of them may be missing."""


@only_nightly
@pytest.mark.parametrize(
    "name", random.Random(SEED).sample(sorted(["a field that does not fit its column", *MISREAD]), 4)
)
def test_control_libfuzzer_finds_what_is_planted_within_a_minute(name: str, tmp_path: Path) -> None:
    planted(tmp_path, (PLANTED | MISREAD)[name])
    variables = guided.build(tmp_path, tmp_path)
    if variables is None:
        give_up(CLANG.title, CLANG.install)
    outcome = guided.run(60, SEED, tmp_path, variables)
    assert outcome.crash is not None or outcome.misreads


def planted(folder: Path, fault: tuple[str, str, str]) -> None:
    """The decoder's sources with a fault in one of them."""
    file, right, wrong = fault
    native = folder / "kzconsumer/records/native"
    shutil.copytree(ROOT / "kzconsumer/records/native", native)
    text = (native / file).read_text()
    assert right in text
    (native / file).write_text(text.replace(right, wrong))
