"""What `offsets reset` is told to do, as `kafka-consumer-groups.sh --reset-offsets` (2.8) has its words and formats.

Owns no state. ValueErrors become wrong usage.
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kzconsumer_tools.offsets.changes import Reset

_DURATION = re.compile(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?", re.ASCII)
_SECONDS = (86_400, 3_600, 60, 1)


def add_reset_words(action: argparse.ArgumentParser) -> None:
    to = action.add_mutually_exclusive_group(required=True)
    to.add_argument("--to-earliest", action="store_true", help="where the log begins")
    to.add_argument("--to-latest", action="store_true", help="where the log ends")
    to.add_argument("--to-current", action="store_true", help="where it is: what lies outside the log is put into it")
    to.add_argument("--to-offset", metavar="N", type=_offset, help="the next record to be read")
    to.add_argument("--shift-by", metavar="N", type=int, help="so many forward, or back when negative")
    to.add_argument(
        "--to-datetime", metavar="TIME", type=read_datetime, help="2026-01-31T12:00:00.000, UTC unless it has a zone"
    )
    to.add_argument("--by-duration", metavar="PnDTnHnMnS", type=_duration, help="so long ago, such as PT1H30M")
    to.add_argument("--from-file", metavar="FILE", type=Path, help="topic,partition,offset on each line, or any export")


def wanted(arguments: argparse.Namespace) -> Reset | None:
    """What is asked for; None: a file says it. A time is in ms since 1970."""
    from kzconsumer_tools.offsets.changes import Reset

    if arguments.to_earliest:
        return Reset("earliest")
    if arguments.to_latest:
        return Reset("latest")
    if arguments.to_current:
        return Reset("current")
    if arguments.to_offset is not None:
        return Reset("offset", arguments.to_offset)
    if arguments.shift_by is not None:
        return Reset("shift", arguments.shift_by)
    if arguments.to_datetime is not None:
        return Reset("time", arguments.to_datetime)
    if arguments.by_duration is not None:
        return Reset("time", round(time.time() * 1000) - arguments.by_duration)
    return None


def topic_scope(text: str) -> tuple[str, tuple[int, ...] | None]:
    """`topic`, or `topic:0,1,2`."""
    from kzconsumer.settings.values import read_topic

    topic, colon, numbers = text.partition(":")
    try:
        read_topic(topic)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{topic!r} {error}") from None
    if not colon:
        return topic, None
    parts = numbers.split(",")
    if not all(part.isascii() and part.isdecimal() for part in parts):
        raise argparse.ArgumentTypeError(f"{numbers!r} is not a list of partitions such as 0,1,2")
    return topic, tuple(int(part) for part in parts)


def topics_together(
    given: Sequence[tuple[str, tuple[int, ...] | None]] | None,
) -> dict[str, set[int] | None] | None:
    """Topic -> partitions (None: all) of every --topic that was given; None: no limit was."""
    if not given:
        return None
    scope: dict[str, set[int] | None] = {}
    for topic, numbers in given:
        known = scope.setdefault(topic, set())
        scope[topic] = None if numbers is None or known is None else known.union(numbers)
    return scope


def _offset(text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r} is not an offset")
    return int(text)


def read_datetime(text: str) -> int:
    """Milliseconds since 1970."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time such as 2026-01-31T12:00:00.000") from None
    return round((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000)


def _duration(text: str) -> int:
    match = _DURATION.fullmatch(text)
    if match is None or not any(match.groups()):
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration such as PT1H30M or P7D")
    parts = zip(match.groups(), _SECONDS, strict=True)
    return round(sum(float(number) * seconds for number, seconds in parts if number) * 1000)
