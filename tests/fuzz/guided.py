"""Record sets that libFuzzer looks for: what reaches code of the decoder that nothing before has reached is changed
further.

Each is judged as those of `record_sets`: by the oracle, in memory that ends where the record set does, with sanitizers.
That takes milliseconds, too long to meet a length of -2 by changing bytes at random: half of the changes are those of
`length_fields`.
libFuzzer comes with clang, which compiles the decoder for it. `python -m tests.fuzz.guided FOLDER SECONDS SEED` is the
child process of `run`.
"""

from __future__ import annotations

import ctypes
import os
import platform
import random
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Never

from tests.fuzz import sanitized
from tests.fuzz.sanitized import DECODER, FLAGS, ROOT
from tests.fuzz.slices import Outcome
from tests.support.programs import CLANG

LONGEST = 4096
"""Bytes of a record set."""
CHOICES = 5
"""Bytes before it: where reading starts, then a producer and an offset of each of two aborted transactions."""


def build(into: Path, root: Path = ROOT) -> dict[str, str] | None:
    """As `sanitized.build`; None if there is no clang, or no libFuzzer in it."""
    clang = CLANG.find()
    if clang is None:
        return None
    machine = platform.machine()
    fuzzer = sanitized.library_of(str(clang), f"libclang_rt.fuzzer_no_main-{machine}.a")
    if fuzzer is None:
        return None
    # Symbolic: the library with the sanitizer has empty functions of the names that libFuzzer counts by.
    linked = f"-shared-libasan -Wl,-Bsymbolic -Wl,--whole-archive {fuzzer} -Wl,--no-whole-archive -lstdc++ -lm"
    linked += f" {Path(__file__).with_name('mutator.c')}"
    flags = f"{FLAGS} -fsanitize=fuzzer-no-link {linked}"
    made = sanitized.compile_with(str(clang), flags, f"libclang_rt.asan-{machine}.so", into, root)
    # The oracle is ten times as fast with Python's own memory. Input, bodies and columns are in guarded or C's memory.
    return None if made is None else made | {"PYTHONMALLOC": "pymalloc"}


def run(seconds: int, seed: int, folder: Path, variables: Mapping[str, str]) -> Outcome:
    """For so long in a child process, or until something is found. `kinds` has how many cases it tried."""
    (folder / "corpus").mkdir()
    command = [sys.executable, "-m", "tests.fuzz.guided", str(folder), str(seconds), str(seed)]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | variables, capture_output=True, text=True)
    counted = re.findall(r"^#(\d+)\t.* cov: (\d+)", done.stderr, re.MULTILINE)
    kinds = Counter(dict(zip(("cases", "edges"), map(int, counted[-1]), strict=True))) if counted else Counter[str]()
    if done.returncode == 0:
        return Outcome([], kinds, None)
    if done.stdout:
        return Outcome(done.stdout.splitlines(), kinds, None)
    inputs = [file.read_bytes().hex() for file in sorted(folder.glob("found-*"))]
    return Outcome([], kinds, "\n".join([done.stderr[-4000:], *inputs]))


def main(folder: Path, seconds: str, seed: str) -> None:
    sanitized.use()
    from tests.fuzz import record_sets
    from tests.fuzz.guarded_memory import GuardedMemory
    from tests.fuzz.length_fields import with_another_length

    record_sets.guard_bodies()
    for number, each in enumerate(record_sets.seeds()):
        (folder / "corpus" / str(number)).write_bytes(bytes([number % 256, 0, 90, 1, 90 + number % 32]) + each)
    area = GuardedMemory(LONGEST)

    def judge(at: int, size: int) -> int:
        data = ctypes.string_at(at, size)
        chosen, records = data[:CHOICES], data[CHOICES:]
        if len(chosen) < CHOICES:
            return -1  # not to be kept
        aborted = [
            (record_sets.PRODUCERS[producer % len(record_sets.PRODUCERS)], offset)
            for producer, offset in (chosen[1:3], chosen[3:5])[: chosen[0] % 3]
        ]
        start = (0, 0, 101, 105)[chosen[0] // 3 % 4]
        found = record_sets.difference(record_sets.decode_unchecked, area.put(records), start, aborted, Counter())
        if found:
            _end("\n".join(found))
        return 0

    def guarded(at: int, size: int) -> int:
        try:
            return judge(at, size)
        except BaseException as error:
            _end(f"raised {error!r}: {ctypes.string_at(at, size).hex()}")

    def changed(at: int, size: int, most: int, seed: int) -> int:
        """Its new size; 0 to have it changed by libFuzzer."""
        data = ctypes.string_at(at, size)
        after = data[:CHOICES] + with_another_length(data[CHOICES:], random.Random(seed))
        if after == data or len(after) > most:
            return 0
        ctypes.memmove(at, after, len(after))
        return len(after)

    _fuzz(
        guarded,
        changed,
        f"-max_total_time={seconds}",
        f"-seed={int(seed) % 2**32 or 1}",
        f"-max_len={CHOICES + LONGEST}",
        f"-artifact_prefix={folder}/found-",
        "-rss_limit_mb=0",
        str(folder / "corpus"),
    )


def _end(text: str) -> Never:
    print(text, flush=True)
    os._exit(1)


def _fuzz(judge: Callable[[int, int], int], change: Callable[[int, int, int, int], int], *arguments: str) -> None:
    given = ["guided", *arguments]
    count = ctypes.c_int(len(given))
    texts = (ctypes.c_char_p * (len(given) + 1))(*(each.encode() for each in given), None)
    called = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t)(judge)
    changing = ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_uint)
    changes = changing(change)
    library = ctypes.CDLL(os.environ[DECODER])
    library.choose_mutator(changes)
    library.LLVMFuzzerRunDriver(ctypes.byref(count), ctypes.byref(ctypes.pointer(texts)), called)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
