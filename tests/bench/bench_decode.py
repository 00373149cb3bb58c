"""The speed of `decode`: records per second of one core, best of many runs, including checksums.

Run by hand: `python -m tests.bench.bench_decode`. Batches have 16 KiB (magic 0 and 1: messages, or wrappers of 16 KiB),
and values are text that compresses about threefold.
"""

from __future__ import annotations

import random
import time

from kzconsumer.records.decode import decode, scan_next_offset
from tests.support.record_sets import Codec, Record, message_set, record_batch

SIZE = 4 << 20
BATCH = 16 << 10
WORDS = [bytes(random.Random(n).choices(b"abcdefghijklmnopqrstuvwxyz", k=n % 7 + 3)) for n in range(300)]


def records(rng: random.Random, size: int, *, keys: bool, headers: bool) -> list[Record]:
    made = []
    for _ in range(max(1, BATCH // (size + 20))):
        value = b" ".join(rng.choices(WORDS, k=size // 5))[:size]
        header = ((b"trace-id", rng.randbytes(8)),) if headers else ()
        made.append(Record(b"user-%08d" % rng.randrange(10**8) if keys else None, value, header))
    return made


def response(
    size: int, *, magic: int = 2, codec: Codec = "none", keys: bool = False, headers: bool = False, total: int = SIZE
) -> tuple[memoryview, int]:
    """About `total` bytes of records, uncompressed, and the number of records."""
    rng = random.Random(size)
    parts: list[bytes] = []
    count = raw = 0
    while raw < total:
        some = records(rng, size, keys=keys, headers=headers)
        if magic == 2:
            parts.append(record_batch(some, base_offset=count, codec=codec))
        else:
            parts.append(message_set(some, magic=magic, base_offset=count, codec=codec))
        count += len(some)
        raw += sum(len(record.value or b"") + 20 for record in some)
    return memoryview(b"".join(parts)), count


def best(data: memoryview, count: int, repeats: int = 30) -> float:
    """Seconds of the fastest run."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        decoded = decode(data, topic="topic", partition=0, start=0)
        times.append(time.perf_counter() - start)
        assert len(decoded.records) == count
    return min(times)


def report(name: str, data: memoryview, count: int, seconds: float) -> None:
    print(f"{name:42} {count / seconds / 1e6:8.2f} M/s {len(data) / seconds / 1e9:8.2f} GB/s {seconds * 1e6:9.0f} us")


def main() -> None:
    for size in (100, 1024):
        data, count = response(size)
        report(f"{size} B, 4 MiB", data, count, best(data, count))
        data, count = response(size, total=1 << 20)
        report(f"{size} B, 1 MiB", data, count, best(data, count))
        data, count = response(size, keys=True)
        report(f"{size} B, keys", data, count, best(data, count))
        data, count = response(size, keys=True, headers=True)
        report(f"{size} B, keys and a header", data, count, best(data, count))
    codecs: tuple[Codec, ...] = ("gzip", "snappy", "lz4", "zstd")
    for codec in codecs:
        data, count = response(100, codec=codec, keys=True)
        report(f"100 B, keys, {codec} (GB/s compressed)", data, count, best(data, count, 10))
    for magic in (0, 1):
        data, count = response(100, magic=magic, keys=True)
        report(f"100 B, keys, magic {magic}", data, count, best(data, count))
        data, count = response(100, magic=magic, keys=True, codec="snappy")
        report(f"100 B, keys, magic {magic}, snappy", data, count, best(data, count, 10))
    data, count = response(100, keys=True)
    times = []
    for _ in range(30):
        start = time.perf_counter()
        scan_next_offset(data, 0)
        times.append(time.perf_counter() - start)
    report("100 B, keys, scan_next_offset", data, count, min(times))
    data = memoryview(record_batch(records(random.Random(1), 100, keys=True, headers=False)[:5], base_offset=0))
    report("one batch of 5 records", data, 5, best(data, 5, 500))


if __name__ == "__main__":
    main()
