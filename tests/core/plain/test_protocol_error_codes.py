from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from kzconsumer.brokers.protocol import error_codes
from kzconsumer.brokers.protocol.error_codes import ERROR_CODES, broker_error


def test_names_and_retriable_match_another_implementation() -> None:
    theirs = {int(code): (code.name.upper(), code.retriable) for code in ErrorCode}
    assert {code: (entry.name, entry.retriable) for code, entry in ERROR_CODES.items()} == {
        code: entry for code, entry in theirs.items() if code in ERROR_CODES
    }
    assert set(ERROR_CODES) == set(range(-1, 128))


def test_errors_that_require_new_metadata_are_retriable() -> None:
    refresh = {entry.name for entry in ERROR_CODES.values() if entry.refresh_metadata}
    assert {"NOT_LEADER_OR_FOLLOWER", "UNKNOWN_TOPIC_OR_PARTITION", "LEADER_NOT_AVAILABLE"} <= refresh
    assert all(entry.retriable for entry in ERROR_CODES.values() if entry.refresh_metadata)


@pytest.mark.parametrize("name", [name for name in vars(error_codes) if name.isupper() and name != "ERROR_CODES"])
def test_constants(name: str) -> None:
    assert ERROR_CODES[getattr(error_codes, name)].name == name


def test_errors() -> None:
    error = broker_error(6, "t-0")
    assert (str(error), error.code, error.retriable, error.refresh_metadata) == (
        "t-0: NOT_LEADER_OR_FOLLOWER (6)",
        6,
        True,
        True,
    )
    unknown = broker_error(999)
    assert (str(unknown), unknown.retriable, unknown.refresh_metadata) == ("UNKNOWN_ERROR_CODE (999)", False, False)
