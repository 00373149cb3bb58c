"""The options of `offsets reset`, with the names and formats of `kafka-consumer-groups.sh --reset-offsets` (2.8)."""

from __future__ import annotations

import argparse
import re
import time
from datetime import UTC, datetime
from pathlib import Path

from kzconsumer.cli.parser import whole_number
from kzconsumer_tools.offsets.changes import Reset

_DURATION = re.compile(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?", re.ASCII)
_SECONDS = (86_400, 3_600, 60, 1)
TIME_HELP = "2026-01-31T12:00:00.000, UTC unless it has a zone"


def add_reset_options(action: argparse.ArgumentParser) -> None:
    to = action.add_mutually_exclusive_group(required=True)
    to.add_argument("--to-earliest", action="store_true", help="the start of the log")
    to.add_argument("--to-latest", action="store_true", help="the end of the log")
    to.add_argument("--to-current", action="store_true", help="the stored offset, moved into the log if it is outside")
    to.add_argument("--to-offset", metavar="N", type=whole_number("an offset"), help="the next record to be read")
    to.add_argument("--shift-by", metavar="N", type=int, help="N offsets forward, or back if negative")
    to.add_argument("--to-datetime", metavar="TIME", type=read_datetime, help=TIME_HELP)
    to.add_argument("--by-duration", metavar="PnDTnHnMnS", type=_duration, help="this long ago, such as PT1H30M")
    to.add_argument("--from-file", metavar="FILE", type=Path, help="topic,partition,offset on each line, or any export")


def chosen_reset(arguments: argparse.Namespace) -> Reset:
    """The chosen reset, unless it is `--from-file`; times are in ms since 1970."""
    if arguments.to_offset is not None:
        return Reset("offset", arguments.to_offset)
    if arguments.shift_by is not None:
        return Reset("shift", arguments.shift_by)
    if arguments.to_datetime is not None:
        return Reset("time", arguments.to_datetime)
    if arguments.by_duration is not None:
        return Reset("time", round(time.time() * 1000) - arguments.by_duration)
    return Reset("earliest" if arguments.to_earliest else "latest" if arguments.to_latest else "current")


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
