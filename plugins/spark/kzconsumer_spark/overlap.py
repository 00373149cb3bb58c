"""The last defence against records that are published twice: ranges of one ledger lie apart, or are the same.

A range that is cut otherwise has another name, so that no ledger knows it for what it is. Claims go on where the
destination is committed; this is for offsets that were set back where no claim record tells (another fingerprint, an
earlier version). Destinations ask before they decide for a range.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Final

from kzconsumer.offsets.destination import RangeIdentity
from kzconsumer_spark.messages import SpooledRange

_NAME: Final = re.compile(r"([^+]+)\+(\d+)\+(-?[0-9a-f]+)\.(\d+)\+(\d{20})\+(\d{20})\.json")


class Overlap(Exception):
    """A range overlaps one that is published, and is not the same."""

    def __init__(self, part: RangeIdentity, other: RangeIdentity) -> None:
        super().__init__(
            f"{_told(part)} is not published: it overlaps {_told(other)}, which is. Offsets were set back by a tool"
            " that raises no reset epoch; set them with kzconsumer offsets reset"
        )


def identity_of(part: SpooledRange | RangeIdentity) -> RangeIdentity:
    return RangeIdentity(part.topic, part.partition, part.incarnation, part.epoch, part.first, part.until)


def require_apart(ranges: Iterable[RangeIdentity], others: Iterable[RangeIdentity]) -> None:
    """Raises Overlap where one of `ranges` has offsets of one of `others`, of the same topic and epoch."""
    by_epoch: dict[tuple[str, int, int, int], list[RangeIdentity]] = {}
    for other in others:
        by_epoch.setdefault(other[:4], []).append(other)
    for part in ranges:
        for other in by_epoch.get(part[:4], ()):
            if other != part and other.first < part.until and part.first < other.until:
                raise Overlap(part, other)


def named(names: Iterable[str], ranges: Collection[RangeIdentity]) -> Iterable[RangeIdentity]:
    """The ranges that entries of a ledger are named after, of the partitions of `ranges`."""
    prefixes = tuple({f"{each.topic}+{each.partition}+" for each in ranges})
    for name in names:
        if name.startswith(prefixes) and (found := _NAME.fullmatch(name)) is not None:
            topic, partition, incarnation, *numbers = found.groups()
            yield RangeIdentity(topic, int(partition), int(incarnation, 16), *map(int, numbers))


def _told(part: RangeIdentity) -> str:
    return f"{part.topic}-{part.partition} [{part.first}, {part.until}) of epoch {part.epoch}"
