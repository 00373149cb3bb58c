"""The compiled record decoder; its sources are in `native/`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Protocol, Self, TypeAlias, final

from typing_extensions import Buffer

from kzconsumer.records.forms import Headers

class _Crc32c(Protocol):
    def __call__(self, data: Buffer, value: int = ..., gil_release_mode: int = ..., /) -> int: ...

_Decompress: TypeAlias = Callable[[int, int, memoryview], Buffer | str]

@final
class Columns:
    """Decoded records of one partition; immutable."""

    @property
    def nbytes(self) -> int:
        """Bytes of these rows and of what describes them as columns."""
    @property
    def held(self) -> int:
        """Bytes of memory that this object keeps."""
    def __len__(self) -> int: ...
    def slice(self, first: int, until: int = ..., /) -> Columns:
        """The rows from index `first` on, below index `until`."""
    def rows_below(self, offset: int, /) -> int:
        """Number of rows whose offset is lower."""
    def arrow_array(self, topic: str, partition: int, /) -> Any:
        """The capsule "arrow_array" of Arrow's PyCapsule interface, of a batch of `columns.SCHEMA`."""

@final
class Message:
    """A Kafka record (`kafka.message.MessageAndMetadata`, with headers). The constructor makes one by hand."""

    def __init__(
        self,
        topic: str,
        partition: int,
        offset: int,
        key: bytes | None,
        value: bytes | None,
        timestamp: int | None = None,
        headers: Headers = (),
        timestamp_type: int = -1,
    ) -> None: ...
    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def timestamp(self) -> int | None:
        """Milliseconds since 1970; None when the record has none."""
    @property
    def timestamp_type(self) -> int:
        """0 for the producer's clock, 1 for the broker's, -1 for none."""
    @property
    def headers(self) -> Headers:
        """(key, value) pairs in the order they were produced."""
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

def range_of(message: Message, /) -> tuple[Any, int, int] | None:
    """(claim, first offset, offset behind it) of the range that acknowledging the message completes; None if it was
    made by hand."""

@final
class Lot:
    """Records that are handed out as messages, each made when it is taken. Its length is that of the rest."""

    def __len__(self) -> int: ...
    def load(self, columns: Columns, topic: str, partition: int, claim: object, begin: int, /) -> None:
        """Hand out these records next, instead of the present ones: none before `allow`.

        They stand for all of the claim from offset `begin` on.
        """
    def allow(self, seconds: float, /) -> None:
        """Let the rest be taken for so long (CLOCK_MONOTONIC_COARSE)."""
    def take(self) -> Message | None:
        """The next message; None if no more may be taken."""
    def last(self) -> tuple[Any, int, int] | None:
        """`range_of` the message that was taken last; None if there is none."""
    def clear(self) -> None:
        """Drop the rest, and what was taken last."""

@final
class MessageIterator:
    """`async for` over messages of a lot. When none may be taken it awaits `allow_more()`, and ends if none is left.

    A cancelled `anext()` takes nothing, and the iteration may go on. Several tasks may wait for the next message.
    """

    def __init__(self, lot: Lot, allow_more: Callable[[], Coroutine[Any, Any, None]], /) -> None: ...
    def __aiter__(self) -> Self: ...
    def __anext__(self) -> Awaitable[Message]: ...

@final
class Memory:
    """Writable bytes, whose first content is undefined."""

    def __init__(self, size: int, /) -> None: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

def decode(
    records: Buffer,
    start: int,
    aborted: Sequence[tuple[int, int]],
    limit: int,
    crc32c: _Crc32c | None,
    decompress: _Decompress,
    /,
) -> tuple[Columns | None, int, bool, str | None, int, int, tuple[tuple[int, int], ...]]:
    """Decode all whole batches: (records, next offset, incomplete, fault or None, byte where it begins, bytes of
    decompressed bodies, `Decoded.epochs`).

    Without `crc32c` no checksum is compared. `decompress(codec, magic, body)` returns the decompressed body, or a text
    that says what is wrong with it; what it raises is raised. Decoding stops before the batch whose body would take all
    bodies together beyond `limit`.
    """

def join(pieces: Sequence[Columns], /) -> Columns:
    """Copies of their records, in this order. Meant for small pieces: the GIL is held.

    Raises ValueError if offsets do not increase, or beyond 2 GiB.
    """

def scan_next_offset(records: Buffer, start: int, /) -> int:
    """The offset behind the last whole batch, at least `start`."""

def allocated_bytes() -> int:
    """Bytes that all objects of this module hold."""
