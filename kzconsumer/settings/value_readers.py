"""Readers for the settings' values that need more than a type and bounds: addresses, names, lists of topics, times.

A reader's ValueError is the rest of a sentence that begins with the value.
"""

from __future__ import annotations

import ipaddress
import re
import warnings
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from datetime import time as clock_time
from typing import Annotated, Literal

from msgspec import Meta

from kzconsumer.model import checked_time
from kzconsumer.settings.bounded_match import matcher
from kzconsumer.settings.table_reader import (
    read_byte_size,
    read_duration,
    read_positive_duration,
    reader,
    show_byte_size,
    show_duration,
)

# White and black lists of topics, as the original consumer reads them.
#
# All members of a group must expand a list to the same topics, or partitions stay without owner. So the expression
# must mean the same here and in Java, whose members may be in the group.

MOST_CHARACTERS = 1 << 12
"""Of a list: Python takes about 0.1 s to compile the worst of this length, `(?i)` and `[ks]` a thousand times."""

WHITE_LIST = "white_list"
BLACK_LIST = "black_list"

# `org.apache.kafka.common.internals.Topic` (4.2): lists leave them out, a static subscription may name them. Original
# members do not know the third, and cannot be in a group that sees it: only clusters without ZooKeeper have it.
INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})

# An escape, and as `beyond` one that stands for a character beyond ASCII.
_ESCAPE = re.compile(r"\\(?:(?P<beyond>[uUN]|x[89a-fA-F]|[23][0-7][0-7])|.)", re.DOTALL)

# What Java and Python read alike, part by part. `tests/core/original/test_java_patterns.py` compares the two.
_ALIKE = re.compile(
    r"""(?: [^\\\[({]
          | \\(?: [^a-zA-Z0-9] | [abfnrtvAdDsSwWB] | x[0-9a-fA-F]{2} | [1-9](?![0-9]) )
          | \[\^?+(?: [^]\\\[&|~-] | ([&|~-])(?!\1) | \\(?: [^a-zA-Z0-9] | [afnrtvdDsSwW] | x[0-9a-fA-F]{2} ) )+\]
          | \{[0-9]{1,9}\}
          | \((?! [?] ) | \(\?(?: [:=!>] | [imsu]*(?:-[ims]+)?[:)] )
        )*""",
    re.VERBOSE | re.DOTALL,
)

# What the first other part most likely is.
_NOT_ALIKE = {
    "[": "a set with `[`, an initial `]`, an escaped number or letter, `&&`, `--`, `||` or `~~` in it",
    "{": 'a `{` other than of `{n}` or `\\{` (a comma means "or", also in `{1,3}`)',
    "(?P": "a group named as in Python",
    "(?<": "a look-behind or a group named as in Java",
    "(?(": "a conditional group",
}


class TopicFilter:
    """A list's expression; use Include or Exclude.

    The text is normalised first: outer white space and quotes go, commas become `|`, spaces vanish. A topic must match
    the whole expression. Internal topics are never matched. Source: `kafka.consumer.TopicFilter` (1.1.1).
    Raises ValueError for a text that is no regular expression, is too long, cannot be matched in a bounded time
    (`bounded_match`), or has characters beyond ASCII: no topic's name has any, and Python takes 10 ms for each range of
    them whose case it ignores.
    """

    pattern: str

    def __init__(self, text: str) -> None:
        if len(text) > MOST_CHARACTERS:
            raise ValueError(f"{_shown(text)} is not a regular expression of at most {MOST_CHARACTERS} characters")
        self.regex = normalised(text)
        if not self.regex.isascii() or any(escape["beyond"] for escape in _ESCAPE.finditer(self.regex)):
            raise ValueError(f"{_shown(text)} is not a regular expression of ASCII characters alone")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)  # of sets that `portable` refuses
                self._matches = matcher(self.regex)
        except (re.error, ValueError, OverflowError, RecursionError) as error:
            raise ValueError(f"{_shown(text)} is not a regular expression: {error}") from error

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.regex!r})"

    def allows(self, topic: str) -> bool:
        """Raises TooManySteps, a ValueError, for an expression that no engine could match in a bounded time."""
        matches = self._matches(topic)
        return topic not in INTERNAL_TOPICS and matches == (self.pattern == WHITE_LIST)

    def portable(self) -> None:
        """Raises ValueError for an expression that Java reads differently, which must not be registered."""
        alike = _ALIKE.match(self.regex)
        rest = self.regex[alike.end() if alike is not None else 0 :]
        if rest:
            named = (each for sign, each in _NOT_ALIKE.items() if rest.startswith(sign))
            meaning = next(named, f"`{rest[: 3 if rest[0] == '(' else 2]}`")
            raise ValueError(f"{_shown(self.regex)} has {meaning}, which Java and Python read differently")


class Include(TopicFilter):
    """Topics that match."""

    pattern = WHITE_LIST


class Exclude(TopicFilter):
    """Topics that do not match."""

    pattern = BLACK_LIST


def _shown(text: str) -> str:
    return repr(text if len(text) <= 200 else f"{text[:200]}...")


def normalised(text: str) -> str:
    """A list's text as the original normalises it."""
    return text.strip().replace(",", "|").replace(" ", "").strip("\"'")


_EPOCH = datetime.fromtimestamp(0, UTC)
_LOG_END = -1  # as ListOffsets asks for it
_INT32_MAX = 2**31 - 1
_LEGAL_NAME = re.compile(r"[A-Za-z0-9._-]+", re.ASCII)
_TOPIC_NAME_MAX = 249
_CONNECT = re.compile(r"(?P<hosts>[^/]+)(?P<chroot>/[!-~\u00a1-\ud7ff]*)?")
_LISTEN = re.compile(r"(?:\[[0-9A-Fa-f:]+\]|[A-Za-z0-9._-]+):\d{1,5}", re.ASCII)
_HOST = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::(?P<port>\d{1,5}))?", re.ASCII)


def read_connect(value: object) -> str:
    """Check the form of a ZooKeeper connect string, which the session parses."""
    match = _CONNECT.fullmatch(value) if isinstance(value, str) else None
    hosts = [each.strip() for each in match["hosts"].split(",")] if match else []
    chroot = (match["chroot"] or "") if match else ""
    wrong = next((each for each in hosts if not _is_host(each)), None)
    if not hosts or wrong is not None:
        # A part with @ may be a user and a password.
        which = f': "{wrong}" is not a host and a port' if len(hosts) > 1 and "@" not in str(value) else ""
        raise ValueError(f'is not a list of hosts such as "zk1:2181,zk2:2181" or "zk1:2181,zk2:2181/chroot"{which}')
    if chroot != "/" and ("//" in chroot or chroot.endswith("/") or {".", ".."} & set(chroot.split("/"))):
        raise ValueError(f'ends in "{chroot}", which is not a ZooKeeper path')
    return str(value)


def _is_host(text: str) -> bool:
    match = _HOST.fullmatch(text)
    return match is not None and 0 < int(match["port"] or 2181) < 65536


def read_name(value: object) -> str:
    """A group or client id (`kafka.common.Config`, 1.1.1), but not an empty one."""
    _require_quotes(value)
    if not isinstance(value, str) or not _LEGAL_NAME.fullmatch(value):
        raise ValueError("is not a name made of ASCII letters, digits, '.', '_' and '-'")
    return value


def _require_quotes(value: object) -> None:
    """Raises ValueError for what TOML reads as no text, though a name may look like that."""
    if isinstance(value, int | float | date | clock_time):
        raise ValueError("is not text: it needs quotes")


def read_listen(value: object) -> str:
    """An address to listen at: a host and a port, or `unix:` and the absolute path of a socket."""
    if isinstance(value, str) and value.startswith("unix:/"):
        return value
    if isinstance(value, str) and _LISTEN.fullmatch(value) and host_and_port(value)[1] < 65536:
        return value
    raise ValueError('is not an address such as "127.0.0.1:9308", "[::1]:9308" or "unix:/run/kzconsumer/status.sock"')


def read_broker(value: object) -> str:
    """A broker's host and port."""
    if isinstance(value, str) and _LISTEN.fullmatch(value) and 0 < host_and_port(value)[1] < 65536:
        return value
    raise ValueError('is not a host and a port such as "kafka1:9092"')


def host_and_port(listen: str) -> tuple[str, int]:
    """Of an address from `read_broker`, or one from `read_listen` that is not a unix socket."""
    host, _, port = listen.rpartition(":")
    return host.strip("[]"), int(port)


def is_local(listen: str) -> bool:
    """Whether only this machine can reach it."""
    return listen.startswith("unix:") or is_loopback(host_and_port(listen)[0])


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def read_listener(value: object) -> str:
    """A listener's name in capitals, as brokers register it (`org.apache.kafka.common.network.ListenerName`)."""
    return read_name(value).upper()


def read_topic(value: object) -> str:
    """A topic name (`org.apache.kafka.common.internals.Topic`)."""
    _require_quotes(value)
    if not isinstance(value, str) or not _LEGAL_NAME.fullmatch(value) or value in {".", ".."}:
        raise ValueError("is not a topic name (ASCII letters, digits, '.', '_' and '-')")
    if len(value) > _TOPIC_NAME_MAX:
        raise ValueError(f"is not a topic name (longer than {_TOPIC_NAME_MAX} characters)")
    return value


def read_topics(value: object) -> object:
    """A table of topics, each with its number of streams, or a list of topics with a stream each."""
    if isinstance(value, list | tuple) and all(isinstance(each, str) for each in value):
        return dict.fromkeys(value, 1)
    if not isinstance(value, Mapping):
        raise ValueError(
            'is not a table "topic = number of streams" such as { payments = 1 }, or a list such as ["payments"]'
        )
    return value


def read_reset(value: object) -> object:
    """Where to begin; the error for a word of Kafka's newer consumer names the one to use here."""
    meant = {"earliest": "smallest", "latest": "largest", "none": "fail"}.get(value) if isinstance(value, str) else None
    if meant is not None:
        raise ValueError(f'is a word of the newer consumer: "{meant}" here')
    return value


def read_fetch_size(value: object) -> int:
    """A size that fits a signed 32-bit field of the fetch request."""
    size = read_byte_size(value)
    if not 0 < size <= _INT32_MAX:
        raise ValueError(f"is not between 1 and {_INT32_MAX} bytes")
    return size


def read_wait(value: object) -> float:
    """A duration that fits a signed 32-bit field of ms in requests."""
    seconds = read_duration(value)
    if seconds * 1000 > _INT32_MAX:
        raise ValueError("is longer than 596h")
    return seconds


def read_timeout(value: object) -> float:
    """As `read_wait`, and more than nothing."""
    read_positive_duration(value)
    return read_wait(value)


def read_list(value: object) -> str:
    """The expression of a white or black list, which must mean the same in Java."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError("is not a regular expression")
    try:
        Include(value).portable()
    except ValueError as error:
        raise ValueError(f"cannot be used: {error}") from None
    return value


def read_stop(value: object) -> int:
    """The time for ListOffsets: -1 for the end of the log, or ms since 1970."""
    if value == "end":
        return _LOG_END
    try:
        time = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
    except ValueError:
        raise ValueError('is neither "end" nor a time such as "2026-01-31T12:00:00Z"') from None
    if time.tzinfo is None:
        raise ValueError("is a time of no time zone: add Z for UTC, or an offset such as +01:00")
    return first_millisecond(time)


def first_millisecond(time: datetime) -> int:
    """The first whole one since 1970 that is not before the time, as records have no finer timestamps.

    Raises ValueError for a time before 1970.
    """
    # Exactly: seconds as a float are up to 0.2 us off.
    return checked_time(-(-(time - _EPOCH) // timedelta(milliseconds=1)))


def read_partition(value: object) -> str:
    """A topic and one of its partitions, as Kafka's tools write them."""
    topic, _, number = value.rpartition(":") if isinstance(value, str) else ("", "", "")
    if not topic or not number.isascii() or not number.isdecimal():
        raise ValueError('is not a topic and a partition such as "orders:3"')
    return f"{read_topic(topic)}:{int(number)}"


def show_stop(stop: int) -> str:
    """The form that `read_stop` accepts."""
    return "end" if stop == _LOG_END else datetime.fromtimestamp(stop / 1000, UTC).isoformat()


Connect = Annotated[str, reader(read_connect)]
BrokerAddress = Annotated[str, reader(read_broker)]
Listen = Annotated[str, reader(read_listen)]
StopAt = Annotated[int, reader(read_stop, show_stop)]
Name = Annotated[str, reader(read_name)]
ListenerName = Annotated[str, reader(read_listener)]
Text = Annotated[str, Meta(min_length=1)]
ListText = Annotated[str, reader(read_list)]
Reset = Annotated[Literal["smallest", "largest", "fail"], reader(read_reset)]
RejectPolicy = Literal["fail", "skip", "dead-letter"]
Partition = Annotated[str, reader(read_partition)]
TopicName = Annotated[str, reader(read_topic)]
Wait = Annotated[float, reader(read_wait, show_duration)]
Timeout = Annotated[float, Meta(gt=0), reader(read_timeout, show_duration)]
FetchSize = Annotated[int, reader(read_fetch_size, show_byte_size)]
PluginName = Annotated[str, Meta(min_length=1)]
AtLeastOne = Annotated[int, Meta(ge=1)]
Topics = Annotated[Mapping[TopicName, AtLeastOne], Meta(min_length=1), reader(read_topics)]

SMALLEST, LARGEST, FAIL = "smallest", "largest", "fail"
