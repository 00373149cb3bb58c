"""Results of examining, repairing and deleting groups, as the commands print them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from kzconsumer_tools.groups.diagnosis import Symptom


class Examined(msgspec.Struct, frozen=True):
    """The answer of `verify` and `doctor`."""

    group: str
    healthy: bool
    symptoms: tuple[Symptom, ...]


class ChangedNode(msgspec.Struct, frozen=True):
    """`old` and `new` are contents, None for no node; what is no text is shown with replacement characters."""

    path: str
    old: str | None
    new: str | None
    reason: str | None


class Cared(msgspec.Struct, frozen=True):
    """The answer of `delete`, `clean` and `restore`. `attended`: who is there, None when nobody is."""

    group: str
    executed: bool
    undo: str | None
    attended: str | None
    nodes: tuple[ChangedNode, ...]
