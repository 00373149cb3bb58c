from __future__ import annotations

import pytest

from kzconsumer.brokers.protocol.versions import API_VERSIONS, BEFORE_API_VERSIONS, FETCH, METADATA, UNKNOWN, Versions
from kzconsumer.errors import UnsupportedVersionError
from tests.support.agreed_versions import agreed


@pytest.mark.parametrize(("range_", "version"), [((0, 17), 12), ((0, 3), 3), ((4, 4), 4), ((12, 20), 12)])
def test_the_newest_common_version(range_: tuple[int, int], version: int) -> None:
    assert Versions({FETCH: range_}).choose(FETCH) == version


def test_no_common_version() -> None:
    with pytest.raises(UnsupportedVersionError, match="Fetch: the broker speaks 13 to 17, we speak 0 to 12"):
        Versions({FETCH: (13, 17)}).choose(FETCH)


def test_a_request_unknown_to_the_broker() -> None:
    with pytest.raises(UnsupportedVersionError, match="the broker does not know Metadata"):
        Versions({FETCH: (0, 3)}).choose(METADATA)


def test_versions_of_brokers_without_api_versions() -> None:
    assert agreed(BEFORE_API_VERSIONS) == (
        "Fetch 0, ListOffsets 0, Metadata 0, OffsetCommit 1, OffsetFetch 1, FindCoordinator 0, DescribeGroups 0"
    )
    with pytest.raises(UnsupportedVersionError):
        BEFORE_API_VERSIONS.choose(API_VERSIONS)


def test_before_negotiation_only_api_versions_can_be_requested() -> None:
    assert UNKNOWN.choose(API_VERSIONS) == 0
