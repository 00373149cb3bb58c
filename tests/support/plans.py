"""A plan as in a claim record, for tests that depend on only some of its fields; and the plans of a group."""

from __future__ import annotations

from typing import Any

import msgspec

from kzconsumer.model import OffsetRange, TopicPartition
from kzconsumer.registry.claim_record import Plan, decode_claim_record
from kzconsumer.registry.paths import GroupPaths
from kzconsumer_sandbox.servers.kafka_servers import Cluster
from tests.support.zookeeper_sessions import session


def plan_of(first: int, until: int, **others: Any) -> Plan:
    """The offsets `first` to `until`, with a record at each; the other fields are as `others` say."""
    plan = Plan(
        id="p",
        first=first,
        until=until,
        offset_version=0,
        records=until - first,
        checksum="0",
        incarnation="0x2a",
        epoch=0,
        isolation="read_committed",
        fingerprint="f",
    )
    return msgspec.structs.replace(plan, **others)


async def planned(cluster: Cluster, group: str, partitions: int = 2) -> set[OffsetRange]:
    """The plans in the claim records of a group, which is named like its topic."""
    found = set()
    async with session(cluster.connect) as zookeeper:
        for number in range(partitions):
            node = await zookeeper.find(GroupPaths(group).claim_record(TopicPartition(group, number)))
            if node is not None and (plan := decode_claim_record(node.data).plan) is not None:
                found.add(OffsetRange(group, number, plan.first, plan.until))
    return found
