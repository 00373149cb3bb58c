"""Results of changes to topics, as the commands print them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from kzconsumer_tools.cluster.requests import Election, Move
    from kzconsumer_tools.cluster.topic_settings import Setting


class OwnSettings(msgspec.Struct, frozen=True):
    """An item of the answer of `get`."""

    topic: str
    config: dict[str, str]


class Configured(msgspec.Struct, frozen=True):
    """The answer of `set`: the settings that change."""

    topic: str
    executed: bool
    settings: tuple[Setting, ...]


class Reassigned(msgspec.Struct, frozen=True):
    """The answer of `reassign`; `pending`: what was not yet done when the time was over."""

    executed: bool
    undo: str | None
    pending: tuple[str, ...]
    partitions: tuple[Move, ...]


class Elected(msgspec.Struct, frozen=True):
    """The answer of `elect-preferred`: partitions that are not led by the preferred leader."""

    executed: bool
    pending: tuple[str, ...]
    partitions: tuple[Election, ...]


class Deleted(msgspec.Struct, frozen=True):
    """The answer of `delete`."""

    executed: bool
    pending: tuple[str, ...]
    topics: tuple[str, ...]
    partitions: int
