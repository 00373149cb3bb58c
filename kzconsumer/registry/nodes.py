"""The contents of the nodes of brokers and topics, and of stored offsets, from Kafka 0.8.2 to 3.9.

A reader raises ValueError with the reason; callers add the path. Also which of a broker's listeners to connect to.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar, overload

import msgspec

from kzconsumer.registry.paths import is_number

T = TypeVar("T")

MOST_BYTES = 8 << 20
"""Of a node; servers accept 1 MiB unless `jute.maxbuffer` is set."""

MOST_NESTED = 100
"""Arrays and objects in each other; Kafka's nodes have three. Python's own limit differs between its versions and with
the depth of the stack, and members of a group have to agree on which registrations can be read."""

_STRING = re.compile(rb'"(?:[^"\\]|\\.)*+"?', re.DOTALL)
_NO_BRACKETS = bytes(each for each in range(256) if each not in b"[]{}")


@overload
def read_json(data: bytes) -> Any: ...
@overload
def read_json(data: bytes, kind: type[T]) -> T: ...
def read_json(data: bytes, kind: Any = Any) -> Any:
    """The value. Raises ValueError with a short reason, also if it is too large or nested too deeply."""
    # Any program may write a znode. So this is the only place that reads JSON of one, and it raises ValueError for
    # whatever is wrong: bytes that are no text, numbers that are too large, a nesting that would end the process. What
    # is returned is not yet checked: a value of the wrong type is neither shown nor converted, as even the `repr` of a
    # deeply nested list fails. MOST_PARTITIONS, and MOST_STREAMS of `model`, bound what is made of it; writers observe
    # them, too.
    if len(data) > MOST_BYTES:
        raise ValueError(f"{len(data)} bytes are more than are read of a node ({MOST_BYTES})")
    if _is_nested_too_deeply(data):
        raise ValueError("nested too deeply")
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(str(error)) from error


def _is_nested_too_deeply(data: bytes) -> bool:
    if data.count(b"[") + data.count(b"{") <= MOST_NESTED:
        return False
    depth = 0
    for bracket in _STRING.sub(b"", data).translate(None, _NO_BRACKETS):
        depth += 1 if bracket in b"[{" else -1
        if depth > MOST_NESTED:
            return True
    return False


def read_object(data: bytes) -> dict[str, Any]:
    """A JSON object. Values may be nested deeply: do not show or convert one without checking its type."""
    try:
        fields = read_json(data)
    except ValueError as error:
        raise ValueError(f"not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise ValueError("not a JSON object")
    return fields


# Metadata returns the other brokers' addresses on the listener that it was requested on, so the choice of one holds for
# all.


class BrokerListener(msgspec.Struct, frozen=True):
    """One `listeners` entry of a broker. Before 0.10.2 a listener's name is its security protocol."""

    name: str
    security_protocol: str
    host: str
    port: int

    def __str__(self) -> str:
        return self.name if self.name == self.security_protocol else f"{self.name} ({self.security_protocol})"


def choose(listeners: Sequence[BrokerListener], name: str | None, security_protocol: str) -> BrokerListener:
    """The listener called `name`; without a name the one called like the protocol, or the only one that uses it.

    Raises ValueError with the existing listeners and the setting to change if there is none.
    """
    there_are = f"it has {', '.join(map(str, listeners)) or 'none'}"
    if name is not None:
        named = [listener for listener in listeners if listener.name == name]
        if not named:
            raise ValueError(f"no listener {name} ([brokers] listener); {there_are}")
        if named[0].security_protocol != security_protocol:
            raise ValueError(
                f"listener {name} speaks {named[0].security_protocol}, not {security_protocol} "
                f"([brokers] security_protocol)"
            )
        return named[0]
    speaking = [listener for listener in listeners if listener.security_protocol == security_protocol]
    alike = [listener for listener in speaking if listener.name == security_protocol]
    if not speaking:
        raise ValueError(f"no listener speaks {security_protocol} ([brokers] security_protocol); {there_are}")
    if not alike and len(speaking) > 1:
        raise ValueError(f"several listeners speak {security_protocol}, [brokers] listener names none; {there_are}")
    return (alike or speaking)[0]


MOST_PARTITIONS = 20_000
"""Of one topic; one with more counts as unreadable."""

MOST_SHOWN = 80
"""Characters of a name in an error."""

# As kafka.cluster.EndPoint reads it: the listener's name may hold "_", which no URL scheme may.
ENDPOINT = re.compile(r"(?P<listener>[^:]*)://\[?(?P<host>[0-9a-zA-Z\-%._:]*?)\]?:(?P<port>[0-9]+)")


def decode_listeners(data: bytes) -> tuple[BrokerListener, ...]:
    """A broker's listeners, from registrations of versions 1 to 5, in their order."""
    fields = read_object(data)
    host, port = fields.get("host"), fields.get("port")
    endpoints = fields.get("endpoints")
    if endpoints is None:  # version 1: 0.8
        if not isinstance(host, str) or not isinstance(port, int):
            raise ValueError("no host or no port")
        return (BrokerListener("PLAINTEXT", "PLAINTEXT", host, port),)
    protocols = fields.get("listener_security_protocol_map") or {}
    if not isinstance(endpoints, list) or not isinstance(protocols, dict):
        raise ValueError("endpoints of an unknown form")
    if not all(isinstance(text, str) for text in (*endpoints, *protocols.values())):
        raise ValueError("endpoints of an unknown form")
    matches = [match for endpoint in endpoints if (match := ENDPOINT.fullmatch(endpoint))]
    return tuple(
        BrokerListener(
            match["listener"],
            protocols.get(match["listener"]) or match["listener"],
            # An empty host means all interfaces: the registration's host field has the name to use.
            match["host"] or (host if isinstance(host, str) else ""),
            int(match["port"]),
        )
        for match in matches
    )


class Topic(msgspec.Struct, frozen=True):
    """A topic: its partitions, ascending, and the czxid of its node, which an earlier topic of that name had not."""

    partitions: tuple[int, ...]
    incarnation: int


class TopicIdentity(NamedTuple):
    """`id` is in base64, and empty if the topic has none."""

    incarnation: int
    id: str


def decode_topic(data: bytes) -> tuple[int, ...]:
    """The partition numbers of a topic, ascending, from `/brokers/topics/<topic>` versions 1 to 3."""
    partitions = read_object(data).get("partitions")
    if not isinstance(partitions, dict):
        raise ValueError("no partitions")
    if len(partitions) > MOST_PARTITIONS:
        raise ValueError(f"more than {MOST_PARTITIONS} partitions")
    for name in partitions:
        if not is_number(name):
            raise ValueError(f"{name[:MOST_SHOWN]!r} is not a partition")
    return tuple(sorted(int(name) for name in partitions))


def decode_topic_id(data: bytes) -> str:
    """The topic's id in base64, which version 3 has (Kafka 2.8); empty if there is none."""
    found = read_object(data).get("topic_id")
    return found if isinstance(found, str) else ""


def of_earlier_topic(stored: int, incarnation: float) -> bool:
    """Whether an offset is of an earlier topic of that name.

    `stored` is the transaction that stored it (mzxid), `incarnation` the one that created the topic.
    """
    return stored < incarnation


def encode_offset(offset: int) -> bytes:
    return b"%d" % offset


def decode_offset(data: bytes) -> int | None:
    """A stored offset, the next record to be read; None for the original's -1, "no offset stored"."""
    text = data.decode("ascii").strip()
    if text == "-1":
        return None
    if not text.isdigit() or int(text) >= 1 << 63:
        raise ValueError(f"{text[:40]!r} is not an offset")
    return int(text)


class _Cluster(msgspec.Struct):
    """The content of `/cluster/id`."""

    id: str


def decode_cluster_id(data: bytes) -> str:
    return read_json(data, _Cluster).id
