"""What the clients of the benchmark read.

Made by `bench_consume`, passed to every client's process on its command line.
"""

from __future__ import annotations

import msgspec


class Source(msgspec.Struct, frozen=True):
    """A topic with `records` records to be read from its beginning."""

    zookeeper: str
    bootstrap: str
    topic: str
    records: int
