"""All that `sink verify` says of a destination in which everything is wrong, to the letter: `proof_page.txt`.

After an intended change, `python -m tests.tools.plain.test_proof_page` rewrites the page.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from kzconsumer.model import RangeIdentity, TopicPartition
from kzconsumer.sinks.interface import HeldRange, Holdings, QuarantinedRange
from kzconsumer_tools.proof import GroupProgress, InLog, Planned, gaps, prove, unlisted
from kzconsumer_tools.tables.offset_tables import proof_table
from tests.core.plain.test_status_documents import lines

PAGE = Path(__file__).with_name("proof_page.txt")


def identity(partition: int, first: int, until: int, epoch: int = 1, incarnation: int = 7) -> RangeIdentity:
    return RangeIdentity("t", partition, incarnation, epoch, first, until)


def held(at: RangeIdentity, records: int | None = None, rows: int | None = None, *faults: str) -> HeldRange:
    """With a record for each offset, and one row fewer set aside."""
    size = at.until - at.first if records is None else records
    return HeldRange(
        identity=at, records_in=size, records_out=size - 1, records_quarantined=1,
        rows=size - 1 if rows is None else rows, faults=faults,
    )  # fmt: skip


def progress(stored: int | None, plan: Planned | None = None, epoch: int = 1) -> GroupProgress:
    return GroupProgress(7, epoch, stored, plan)


#: What the log has where the destination has a gap, by the partition and the first offset.
IN_LOG: dict[tuple[int, int], InLog] = {(1, 5): "records", (1, 20): "gone", (1, 40): "unknown", (1, 60): "none"}


def page() -> str:
    flying = Planned(identity(0, 14, 20), 6, "f")
    after = {
        TopicPartition("t", 0): progress(14, flying),
        TopicPartition("t", 1): progress(90),
        TopicPartition("t", 3): progress(10, epoch=0),
        TopicPartition("t", 4): progress(8, Planned(identity(4, 8, 12), 3, "f")),
        TopicPartition("t", 5): progress(8, Planned(identity(5, 8, 12), 4, "another")),
        TopicPartition("t", 6): progress(None),
        TopicPartition("t", 7): msgspec.structs.replace(progress(9), written=(5, 9), fingerprint="f"),
        TopicPartition("t", 8): msgspec.structs.replace(progress(9), written=(5, 9), fingerprint="another"),
    }
    ranges = [
        *(held(identity(0, *each, epoch=0)) for each in ((0, 6), (6, 10))),
        *(held(identity(0, *each)) for each in ((4, 9), (9, 14), (14, 20))),
        *(held(identity(1, *each)) for each in ((0, 5), (10, 20), (30, 40), (50, 60), (70, 80), (75, 90), (90, 95))),
        held(identity(2, 3, 9)),
        held(identity(3, 0, 10)),
        held(identity(4, 0, 4), 7),
        held(identity(4, 4, 8), 4, 5, "a file is missing", "a file has other content"),
        held(identity(4, 8, 12)),
        held(identity(5, 0, 8)),
        held(identity(6, 0, 2)),
        held(identity(7, 0, 5)),
        held(identity(8, 0, 5)),
        held(identity(9, 0, 5, incarnation=6)),
    ]
    aside = [
        QuarantinedRange(identity(5, 0, 8), 8),
        QuarantinedRange(identity(8, 5, 9), 4),
        QuarantinedRange(identity(6, 2, 3), 1),
    ]
    holdings = Holdings(
        destination="files", fingerprint="f", ranges=tuple(ranges), strays=("a stray file",), leftovers=("a leftover",)
    )
    before = {**after, TopicPartition("t", 1): progress(85)}
    missing = gaps(before, holdings, aside, lost := unlisted(before, holdings))
    found = {each: IN_LOG.get((each.partition, each.first), "records") for each in missing}
    proof = prove("g", before, holdings, after, aside, found)
    about = {"unlisted": lost, "gaps": missing, **msgspec.structs.asdict(proof)}
    return "\n".join([*lines(msgspec.to_builtins(about)), "", proof_table(proof), ""])


def test_everything_is_wrong() -> None:
    assert page() == PAGE.read_text()


if __name__ == "__main__":
    PAGE.write_text(page())
