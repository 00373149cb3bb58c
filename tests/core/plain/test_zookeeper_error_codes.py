"""The table of ZooKeeper's error codes: complete, and each with a meaning and a way to handle it."""

from __future__ import annotations

import pytest

from kzconsumer.errors import BadVersionError, ConnectionLostError, NotNowError, ZooKeeperError
from kzconsumer.zookeeper import wire
from kzconsumer.zookeeper.operations import ERROR_CODES, Handling, error_code
from kzconsumer.zookeeper.wire import Reply, result

CODES_OF_3_8_4 = {
    "OK": 0, "SYSTEMERROR": -1, "RUNTIMEINCONSISTENCY": -2, "DATAINCONSISTENCY": -3, "CONNECTIONLOSS": -4,
    "MARSHALLINGERROR": -5, "UNIMPLEMENTED": -6, "OPERATIONTIMEOUT": -7, "BADARGUMENTS": -8, "UNKNOWNSESSION": -12,
    "NEWCONFIGNOQUORUM": -13, "RECONFIGINPROGRESS": -14, "APIERROR": -100, "NONODE": -101, "NOAUTH": -102,
    "BADVERSION": -103, "NOCHILDRENFOREPHEMERALS": -108, "NODEEXISTS": -110, "NOTEMPTY": -111, "SESSIONEXPIRED": -112,
    "INVALIDCALLBACK": -113, "INVALIDACL": -114, "AUTHFAILED": -115, "SESSIONMOVED": -118, "NOTREADONLY": -119,
    "EPHEMERALONLOCALSESSION": -120, "NOWATCHER": -121, "REQUESTTIMEOUT": -122, "RECONFIGDISABLED": -123,
    "SESSIONCLOSEDREQUIRESASLAUTH": -124, "QUOTAEXCEEDED": -125, "THROTTLEDOP": -127,
}  # fmt: skip
"""`javap -v 'org.apache.zookeeper.KeeperException$Code'`; -9, INVALIDSTATE, is of the C client."""


def test_the_table_has_every_code() -> None:
    assert {known.name: code for code, known in ERROR_CODES.items() if code != -9} == CODES_OF_3_8_4
    assert all(known.meaning for known in ERROR_CODES.values())


@pytest.mark.parametrize("code", [code for code in ERROR_CODES if code])
def test_each_code_becomes_the_error_of_its_handling(code: int) -> None:
    handling = error_code(code).handling
    with pytest.raises((ZooKeeperError, ConnectionLostError)) as refused:
        result(wire.get("/n", "/n"), Reply(1, 1, code, b""))
    assert isinstance(refused.value, ConnectionLostError) == (handling is Handling.RECONNECT)
    assert isinstance(refused.value, NotNowError) == (handling in (Handling.REPEAT, Handling.WAIT))
    if isinstance(refused.value, NotNowError):
        assert refused.value.wait == (handling is Handling.WAIT)
    if handling is not Handling.ANSWER:
        assert error_code(code).name in str(refused.value)


def test_an_unknown_code_ends_the_request_and_has_its_number() -> None:
    with pytest.raises(ZooKeeperError, match=r"^/n: .*\(UNKNOWN, -199\)"):
        result(wire.get("/n", "/n"), Reply(1, 1, -199, b""))


def test_refusals_of_single_operations_keep_their_errors() -> None:
    with pytest.raises(BadVersionError):
        result(wire.get("/n", "/n"), Reply(1, 1, -103, b""))
