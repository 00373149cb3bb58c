"""Recorded responses of brokers about their groups, byte for byte, in every version of each request.

`tests/core/servers/test_group_state.py` has the same checks for brokers that run, and says how to record them again.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kzconsumer.brokers.protocol.error_codes import GROUP_ID_NOT_FOUND, NONE, UNSUPPORTED_VERSION
from kzconsumer.brokers.protocol.groups import (
    ConsumerGroupDescribeRequest,
    CoordinatedMember,
    DescribeGroupsRequest,
    GroupState,
    ListedGroup,
    ListGroupsRequest,
)
from kzconsumer.model import TopicPartition

PLACE = Path(__file__).with_name("captured_groups.json")
TOPIC, PARTITIONS = "captured", 2
CLASSIC, NEWER, SHARE, ALONE, NONE_SUCH = "classic", "newer", "share", "alone", "none"
"""Groups: with a member of each protocol, with an offset and never a member, and no group."""

Answers = dict[str, tuple[str, str]]
"""Request and version -> request and response, in hexadecimal."""


def requests(version: str) -> dict[str, Any]:
    """Those that a broker of that version is sent."""
    asked: dict[str, Any] = {"DescribeGroups": DescribeGroupsRequest((CLASSIC, ALONE, NONE_SUCH))}
    if version != "0.9.0.1":  # it lists groups, too, but cannot say which requests it knows
        asked["ListGroups"] = ListGroupsRequest()
    if version == "3.9.1":
        asked["ConsumerGroupDescribe"] = ConsumerGroupDescribeRequest((CLASSIC,))
    if version == "4.2.0":
        asked["DescribeGroups"] = DescribeGroupsRequest((CLASSIC, ALONE, NONE_SUCH, NEWER))
        asked["ConsumerGroupDescribe"] = ConsumerGroupDescribeRequest((NEWER, CLASSIC, NONE_SUCH))
    return asked


def check(broker: str, api: str, version: int, answer: Any) -> None:
    """Whether that is what we read of a broker's response."""
    if api == "ListGroups":
        kinds = {CLASSIC: ("consumer", "classic"), ALONE: ("", "classic")}
        if broker == "4.2.0":
            kinds |= {NEWER: ("consumer", "consumer"), SHARE: ("share", "share")}
        expected = {ListedGroup(group, of, kind if version >= 5 else "") for group, (of, kind) in kinds.items()}
        assert (answer.error, set(answer.groups)) == (NONE, expected), (broker, version)
        return
    if (api, broker) == ("ConsumerGroupDescribe", "3.9.1"):  # in ZooKeeper mode brokers know the request alone
        assert {group: state.error for group, state in answer.items()} == {CLASSIC: UNSUPPORTED_VERSION}
        return
    missing = {NONE_SUCH, CLASSIC} if api == "ConsumerGroupDescribe" else {NONE_SUCH, NEWER}
    if broker == "0.9.0.1":  # there offsets alone make no group
        missing.add(ALONE)
    for group, state in answer.items():
        about = broker, api, version, state
        assert state.missing == (group in missing), about
        if state.missing:
            assert (state.error, state.members) == (GROUP_ID_NOT_FOUND if api == "ConsumerGroupDescribe" else NONE, ())
        elif group == ALONE:
            assert state == GroupState(NONE, "Empty", ()), about
        else:
            (member,) = state.members
            owned = tuple(TopicPartition(TOPIC, number) for number in range(PARTITIONS))
            assert member == CoordinatedMember(member.id, "client", "/127.0.0.1", (TOPIC,), owned), about
            assert (state.error, state.state, bool(member.id)) == (NONE, "Stable", True), about


@pytest.mark.parametrize(("broker", "answers"), json.loads(PLACE.read_text()).items())
def test_recorded_responses_are_decoded(broker: str, answers: Answers) -> None:
    asked = requests(broker)
    assert {name.split()[0] for name in answers} == set(asked)
    for name, (request, response) in answers.items():
        api, version = name.split()
        assert asked[api].encode(int(version)) == bytes.fromhex(request), name
        check(broker, api, int(version), asked[api].decode(int(version), memoryview(bytes.fromhex(response))))
