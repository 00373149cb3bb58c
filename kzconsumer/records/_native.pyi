"""The compiled record decoder; its sources are in `native/`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias, final

from typing_extensions import Buffer

class _Crc32c(Protocol):
    def __call__(self, data: Buffer, value: int = ..., gil_release_mode: int = ..., /) -> int: ...

_Decompress: TypeAlias = Callable[[int, int, memoryview], Buffer | str]
_Headers: TypeAlias = tuple[tuple[str, bytes | None], ...]

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
    def rows(
        self,
    ) -> tuple[bytes, list[bytes | None] | None, list[bytes | None], bytes, bytes, list[_Headers] | None]:
        """Copies: offsets as int64, keys (None if there are none), values, timestamps as int64, their types as int8,
        headers (None if there are none)."""
    def arrow_array(self, topic: str, partition: int, /) -> Any:
        """The capsule "arrow_array" of Arrow's PyCapsule interface, of a batch of `columns.SCHEMA`."""

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
) -> tuple[Columns | None, int, bool, str | None, int, int]:
    """Decode all whole batches: (records, next offset, incomplete, fault or None, byte where it begins, bytes of
    decompressed bodies).

    Without `crc32c` no checksum is compared. `decompress(codec, magic, body)` returns the decompressed body, or a text
    that says what is wrong with it; what it raises is raised. Decoding stops before the batch whose body would take all
    bodies together beyond `limit`.
    """

def frame(
    records: Buffer, crc32c: _Crc32c | None, /
) -> tuple[list[tuple[int, int, int, int, int, int]], bool, str | None, int]:
    """(entries, whether the bytes end inside a batch, fault or None, byte where it begins).

    An entry is (first byte, byte behind it, magic, offset in its header, last offset, highest timestamp).
    """

def scan_next_offset(records: Buffer, start: int, /) -> int:
    """The offset behind the last whole batch, at least `start`."""

def allocated_bytes() -> int:
    """Bytes that all `Columns` and `Memory` hold."""
