"""What a sink may report about its destination: what it holds, previews of records, bad records.

Optional parts of the sink interface, used by `kzconsumer sink verify`, `replay` and `try`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol, runtime_checkable

import msgspec

from kzconsumer.model import RangeIdentity
from kzconsumer.sinks.interface import Batch


class KeptRange(NamedTuple):
    """A range in the sink's quarantine; the records of raw bytes are not counted (None)."""

    identity: RangeIdentity
    records: int | None


class BadRecord(msgspec.Struct, frozen=True):
    """Where a record is that cannot be decoded, and why."""

    topic: str
    partition: int
    offset: int
    reason: str


class Preview(msgspec.Struct, frozen=True, kw_only=True):
    """What a sink would make of records: `columns` are names and types, cells what JSON can say of them."""

    columns: tuple[tuple[str, str], ...]
    rows: tuple[tuple[object, ...], ...]
    bad: tuple[BadRecord, ...]


@runtime_checkable
class Previewing(Protocol):
    """A sink that can show what it would write, for `kzconsumer sink try`. It has not been entered then.

    Nothing is published, marked or set aside. Raises ConfigError for options that turn out to be wrong, SinkError.
    """

    async def preview(self, batch: Batch) -> Preview: ...


class HeldRange(msgspec.Struct, frozen=True, kw_only=True):
    """A range that a destination's ledger has: records that came in, rows that went out, records set aside.

    Older ones that follow each other may be listed as one: then `ranges` is their number, and `gaps` which offsets
    between them are not there, in order. `rows` are those counted in the destination itself (None where that cannot be
    done), `faults` what is wrong there.
    """

    identity: RangeIdentity
    records_in: int
    records_out: int
    records_quarantined: int
    rows: int | None = None
    faults: tuple[str, ...] = ()
    ranges: int = 1
    gaps: tuple[tuple[int, int], ...] = ()

    @property
    def runs(self) -> list[RangeIdentity]:
        """The offsets that are there, in order: one range, unless there are gaps."""
        ends = [self.identity.first, *(end for gap in self.gaps for end in gap), self.identity.until]
        return [RangeIdentity(*self.identity[:4], *ends[at : at + 2]) for at in range(0, len(ends), 2)]


class Holdings(msgspec.Struct, frozen=True, kw_only=True):
    """What a destination holds: `strays` are what its readers see and no range stands for, `leftovers` what they do not
    see and is not used any more. A snapshot, except for `rows`, `faults` and `strays`."""

    destination: str
    fingerprint: str
    ranges: tuple[HeldRange, ...]
    strays: tuple[str, ...] = ()
    leftovers: tuple[str, ...] = ()


@runtime_checkable
class Accountable(Protocol):
    """A replayable sink that can list what its destination holds, for `kzconsumer sink verify` and `sink replay`.

    It need not have been entered; nothing is changed, made or marked. Members may be writing meanwhile: a range that is
    there whole when this is called is listed, one that is only under way is neither listed nor a stray. Without
    `count_rows` only the ledger is read. Raises SinkError when there is no destination, or it is another group's.
    """

    async def holdings(self, *, count_rows: bool) -> Holdings: ...


class Redirectable(Protocol):
    """A plugin whose sink can be given another target of the same kind, for `kzconsumer sink replay`.

    The plugin itself has this, not the sink. Returns the options with everything that is written going to `into`.
    """

    def elsewhere(self, options: Mapping[str, object], into: str) -> Mapping[str, object]: ...
