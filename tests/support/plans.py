"""A plan as in a claim record, for tests that depend on only some of its fields."""

from __future__ import annotations

from typing import Any

import msgspec

from kzconsumer.registry.claim_record import Plan


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
