"""DescribeGroups 0: the members of a group that brokers coordinate (0.9 and later; 0.8.2 hangs up on the request)."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from kzconsumer.brokers.protocol.primitives import INT32, string
from kzconsumer.brokers.protocol.versions import DESCRIBE_GROUPS, response
from kzconsumer.errors import ProtocolError


class DescribedGroup(msgspec.Struct, frozen=True):
    """`members`: their ids, with the client's name in front. An unknown group has none, and no error."""

    error: int
    members: tuple[str, ...]


class DescribeGroupsRequest(msgspec.Struct, frozen=True):
    """Asks the group's coordinator about one group."""

    group: str
    api_key: ClassVar[int] = DESCRIBE_GROUPS

    def encode(self, version: int) -> bytes:
        return INT32.pack(1) + string(self.group)

    def decode(self, version: int, body: memoryview) -> DescribedGroup:
        with response(DESCRIBE_GROUPS, version, body) as reader:
            found = {}
            for _ in range(reader.count()):
                error, group = reader.int16(), reader.string()
                for _ in ("state", "protocol type", "protocol"):
                    reader.string()
                members = []
                for _ in range(reader.count()):
                    members.append(reader.string())
                    for _ in ("client id", "host"):
                        reader.string()
                    for _ in ("metadata", "assignment"):
                        reader.data()
                found[group] = DescribedGroup(error, tuple(members))
            if self.group not in found:
                raise ProtocolError(f"group {self.group!r} is not in it")
            return found[self.group]
