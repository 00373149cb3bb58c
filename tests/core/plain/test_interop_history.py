"""What the interop runs read of transaction logs: what an ensemble has committed, and the history of a group."""

from __future__ import annotations

import struct
import zlib

import pytest

from tests.interop.committed import IncompleteLogsError, committed
from tests.interop.history import BROKER, TOOL, End, History, history
from tests.interop.txn_log import (
    Change,
    CloseSession,
    Create,
    CreateSession,
    DamagedLogError,
    Delete,
    SetData,
    Txn,
    read,
)


def txn(zxid: int, *changes: Change, session: int = 1, cxid: int = 1) -> Txn:
    return Txn(zxid, session, cxid, 1000 * zxid, changes)


def of_epoch(epoch: int, count: int) -> list[Txn]:
    return [txn((epoch << 32) + number) for number in range(1, count + 1)]


def test_a_transaction_of_one_server_alone_is_not_committed() -> None:
    """A leader was killed with a proposal that nobody else has; the next leader has an epoch of its own."""
    first, second = of_epoch(1, 5), of_epoch(2, 3)
    assert committed([first + second, first[:4] + second, first[:4] + second]) == first[:4] + second


def test_a_server_that_has_missed_some_is_in_a_minority() -> None:
    first, second = of_epoch(1, 5), of_epoch(2, 3)
    assert committed([first + second, first[:2] + second[1:], first + second[:1]]) == first + second


def test_what_precedes_a_committed_transaction_is_committed() -> None:
    """The others got it with a snapshot, which is in no log."""
    first = of_epoch(1, 5)
    assert committed([first, first[:2] + first[3:], first[:2]]) == first


def test_a_transaction_that_no_log_has() -> None:
    first = of_epoch(1, 5)
    with pytest.raises(IncompleteLogsError, match="0x100000003"):
        committed([first[:2] + first[3:]] * 3)


def test_one_server() -> None:
    assert committed([of_epoch(0, 3)]) == of_epoch(0, 3)


def of_group(*txns: Txn) -> History:
    return history(txns, "g", "t", "/root")


def registers(zxid: int, name: str, session: int) -> Txn:
    return txn(zxid, Create(f"/root/consumers/g/ids/{name}", b"{}", ephemeral=True), session=session)


def claims(zxid: int, session: int, partition: int = 0) -> Txn:
    path = f"/root/consumers/g/owners/t/{partition}"
    return txn(zxid, Create(path, b"text", ephemeral=True), SetData(path, b"text", 1), session=session)


@pytest.mark.parametrize(
    ("ending", "how", "by"),
    [
        (txn(4, Delete("/root/consumers/g/owners/t/0"), session=7), End.RELEASED, "a"),
        (txn(4, Delete("/root/consumers/g/owners/t/0"), session=8), End.TAKEN, "b"),
        (txn(4, CloseSession(), session=7, cxid=99), End.CLOSED, "a"),
        (txn(4, CloseSession(), session=7, cxid=0), End.EXPIRED, "a"),
    ],
)
def test_how_an_ownership_ends(ending: Txn, how: End, by: str) -> None:
    found = of_group(registers(1, "a", 7), registers(2, "b", 8), claims(3, 7), ending)
    (owned,) = found.owned
    assert (owned.consumer, owned.partition, owned.began, owned.zxid) == ("a", 0, 3.0, 3)
    assert (owned.end, owned.ended, owned.ended_by, owned.last_zxid) == (how, 4.0, by, 4)


def test_an_open_ownership_and_another_groups() -> None:
    found = of_group(
        registers(1, "a", 7),
        claims(2, 7),
        claims(3, 7, 1),
        txn(4, Delete("/root/consumers/other/owners/t/0"), session=7),
        txn(5, Delete("/root/consumers/g/owners/t/1"), session=7),
        txn(6, CloseSession(), session=8, cxid=0),
    )
    assert [each.end for each in found.owned] == [End.OPEN, End.RELEASED]


def test_who_stored_an_offset() -> None:
    path = "/root/consumers/g/offsets/t/0"
    broker = txn(2, Create("/root/brokers/ids/1", b"{}", ephemeral=True), session=8)
    found = of_group(
        registers(1, "a", 7),
        broker,
        txn(3, Create(path, b"0", ephemeral=False), session=9),
        txn(4, SetData(path, b"5", 1), session=7),
        txn(5, SetData(path, b"4", 2), session=8),
        txn(6, SetData("/root/consumers/g/offsets/other/0", b"9", 1), session=7),
    )
    assert [(each.offset, each.writer) for each in found.stored] == [(0, TOOL), (5, "a"), (4, BROKER)]
    assert found.offsets() == {0: 4}


def test_a_nudge_is_no_registration() -> None:
    """A member creates and deletes a node among the registrations, in one transaction."""
    path = "/root/consumers/g/ids/a-poke-1"
    nudge = txn(2, Create(path, b"{}", ephemeral=True), Delete(path), session=7)
    found = of_group(registers(1, "a", 7), nudge, claims(3, 7))
    assert [each.consumer for each in found.registered] == ["a"]
    assert found.owned[0].consumer == "a"


HEADER = b"ZKLG" + struct.pack("!iq", 2, 0)


def entry(kind: int, record: bytes) -> bytes:
    content = struct.pack("!qiqqi", 1, 2, 3, 4, kind) + record
    return struct.pack("!qi", zlib.adler32(content), len(content)) + content + b"B"


def test_a_file_ends_with_zeros_or_with_half_an_entry() -> None:
    whole = entry(-10, struct.pack("!i", 6000))
    expected = [Txn(3, 1, 2, 4, (CreateSession(6000),))]
    assert list(read(HEADER + whole + bytes(1000))) == expected
    assert list(read(HEADER + whole + whole[:-1])) == expected
    assert list(read(HEADER + whole + whole[:20])) == expected
    assert list(read(b"")) == []


def test_a_failed_multi_changes_nothing() -> None:
    def text(value: str) -> bytes:
        return struct.pack("!i", len(value)) + value.encode()

    def multi(*parts: tuple[int, bytes]) -> bytes:
        content = (struct.pack("!ii", kind, len(part)) + part for kind, part in parts)
        return entry(14, struct.pack("!i", len(parts)) + b"".join(content))

    delete, error = (2, text("/a")), (-1, struct.pack("!i", -101))
    (done,), (failed,) = read(HEADER + multi(delete)), read(HEADER + multi(delete, error))
    assert done.changes == (Delete("/a"),)
    assert failed.changes == ()


def test_a_damaged_file() -> None:
    with pytest.raises(DamagedLogError, match="checksum"):
        list(read(HEADER + entry(-10, b"\0\0\0\1").replace(b"\0\0\0\1B", b"\0\0\0\2B")))
    with pytest.raises(DamagedLogError, match="no transaction log"):
        list(read(b"ZKSN" + HEADER[4:] + entry(-10, b"\0\0\0\1")))
