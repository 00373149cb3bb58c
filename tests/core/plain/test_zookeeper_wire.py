"""Any bytes from a server yield a value or one of our errors."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from aiozk import protocol
from hypothesis import given
from hypothesis import strategies as st

from kzconsumer.errors import ConnectionLostError, ProtocolError, ZooKeeperError
from kzconsumer.zookeeper import wire
from kzconsumer.zookeeper.operations import OK, AclEntry, Check, Create, Delete, Operation, SetData, size_of
from kzconsumer.zookeeper.wire import MAX_REQUEST, Reply, WireRequest, established, event, reply, result

REQUESTS: list[WireRequest[Any]] = [
    wire.get("/a", "/c/a"),
    wire.exists("/a", "/c/a"),
    wire.acl("/a", "/c/a"),
    wire.children("/a", "/c/a"),
    wire.create("/a", "/c/a", b"", ephemeral=True),
    wire.set_data("/a", "/c/a", b"", 0),
    wire.delete("/a", "/c/a", 0),
    wire.sync("/a", "/c/a"),
    wire.sasl(b"token"),
    wire.multi([Check("/a", 0), SetData("/b", b"", 1)], lambda path: "/c" + path),
]

# Small numbers, as lengths and counts are, find more than evenly random bytes.
bodies = st.lists(
    st.one_of(st.binary(max_size=8), st.integers(-2, 20).map(lambda number: number.to_bytes(4, "big", signed=True))),
    max_size=30,
).map(b"".join)


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda request: request.body[:4].hex())
@given(body=bodies)
def test_any_reply_is_decoded_or_rejected(request_: WireRequest[Any], body: bytes) -> None:
    with contextlib.suppress(ProtocolError, ZooKeeperError, ConnectionLostError):
        result(request_, Reply(1, 1, OK, body))


@given(body=bodies)
def test_any_event_and_any_handshake_is_decoded_or_rejected(body: bytes) -> None:
    for read in (event, established, reply):
        with contextlib.suppress(ProtocolError):
            read(body)


@given(code=st.integers(-(2**31), 2**31 - 1).filter(bool))
def test_any_error_code_is_an_error_with_its_number_or_meaning(code: int) -> None:
    with pytest.raises((ZooKeeperError, ConnectionLostError)) as refused:
        result(REQUESTS[0], Reply(1, 1, code, b""))
    assert str(code) in str(refused.value) or code in (-101, -102, -103, -110, -111)


versions = st.integers(-(2**31), 2**31 - 1)
data = st.binary() | st.integers(0, 300).map(bytes)
acls = st.lists(st.builds(AclEntry, versions, st.text(), st.text()), max_size=3).map(tuple)
operations = st.lists(
    st.one_of(
        st.builds(Check, st.text(), versions),
        st.builds(SetData, st.text(), data, versions),
        st.builds(Create, st.text(), data, st.booleans(), st.booleans(), acls),
        st.builds(Delete, st.text(), versions),
    ),
    min_size=1,
)


@given(wanted=operations)
def test_a_transaction_is_as_the_codec_writes_it(wanted: list[Operation]) -> None:
    transaction = protocol.TransactionRequest()
    for operation in wanted:
        transaction.add(_as_the_codec(operation))
    assert wire.multi(wanted, lambda path: path).body == transaction.serialize()


@given(wanted=operations)
def test_a_transaction_is_not_larger_than_it_is_taken_to_be(wanted: list[Operation]) -> None:
    """With the larger of the ACLs, and beside 13 bytes of the request's own."""
    body = wire.multi(wanted, lambda path: path, lambda path: "creator-writes").body
    assert len(body) - 13 <= size_of(wanted) <= len(body) + 15 * len(wanted)


def _as_the_codec(operation: Operation) -> Any:
    path = operation.path
    match operation:
        case Check():
            return protocol.CheckVersionRequest(path=path, version=operation.version)
        case SetData():
            return protocol.SetDataRequest(path=path, data=operation.data, version=operation.version)
        case Delete():
            return protocol.DeleteRequest(path=path, version=operation.version)
        case Create():
            given = [
                protocol.acl.ACL(perms=each.permissions, id=protocol.acl.ID(scheme=each.scheme, id=each.user))
                for each in operation.acl
            ]
            acl = given or [protocol.UNRESTRICTED_ACCESS]
            request = protocol.CreateRequest(path=path, data=operation.data, acl=acl)
            request.set_flags(ephemeral=operation.ephemeral, sequential=operation.sequential)
            return request


@given(content=st.binary(max_size=20), size=st.integers(-3, 25))
def test_a_token_is_as_long_as_the_server_says(content: bytes, size: int) -> None:
    body = size.to_bytes(4, "big", signed=True) + content
    if max(size, 0) == len(content):
        assert result(wire.sasl(b""), Reply(1, 1, OK, body)) == content
    else:
        with pytest.raises(ProtocolError, match=f"{len(content)} bytes instead of {size}"):
            result(wire.sasl(b""), Reply(1, 1, OK, body))


@given(token=st.binary(max_size=20), scheme=st.sampled_from(["digest", "ip"]))
def test_credentials_are_sent_as_they_are(token: bytes, scheme: str) -> None:
    counted = len(token).to_bytes(4, "big") + token
    assert wire.sasl(token).body == (102).to_bytes(4, "big") + counted
    name = len(scheme).to_bytes(4, "big") + scheme.encode()
    assert wire.add_auth(scheme, token).body == (100).to_bytes(4, "big") + bytes(4) + name + counted


def test_a_request_is_not_sent_if_it_is_larger_than_a_server_takes() -> None:
    """It would close the connection, with all that is in flight on it."""
    room = MAX_REQUEST - len(wire.set_data("/a", "/c/a", b"", 0).body)
    assert len(wire.set_data("/a", "/c/a", bytes(room), 0).body) == MAX_REQUEST
    for make in (
        lambda: wire.set_data("/a", "/c/a", bytes(room + 1), 0),
        lambda: wire.multi([SetData("/a", bytes(room), 0)], lambda path: "/c" + path),
    ):
        with pytest.raises(ZooKeeperError, match=r"/a: a request of 10000\d\d bytes is more than a server takes"):
            make()
