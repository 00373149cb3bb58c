"""Results of changes to stored offsets, as the commands print them."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from kzconsumer_tools.groups.nodes import GroupNodes
from kzconsumer_tools.offsets.changes import DescribedMove, Move


class MovedGroup(msgspec.Struct, frozen=True):
    """`attended`: who is there, so that nothing may be moved; None when nobody is."""

    group: str
    attended: str | None
    moves: tuple[DescribedMove, ...]


class Moved(msgspec.Struct, frozen=True):
    """`executed` is false for a plan, and when there was nothing to change; `undo` is the file that undoes it."""

    executed: bool
    undo: str | None
    groups: tuple[MovedGroup, ...]


class Planned(NamedTuple):
    nodes: GroupNodes
    moves: list[Move]
