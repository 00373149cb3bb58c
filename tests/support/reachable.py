"""What an object keeps in memory: tests of what is bounded, or forgotten, need not know in which attributes it is."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from types import FunctionType, ModuleType


def reachable(root: object, without: Sequence[object] = ()) -> list[object]:
    """All objects that it refers to, directly or not, but through none of `without`. Small numbers are shared."""
    found: dict[int, object] = {}
    left = [root]
    while left:
        each = left.pop()
        if (
            id(each) in found
            or isinstance(each, (type, FunctionType, ModuleType))
            or any(each is one for one in without)
        ):
            continue
        found[id(each)] = each
        left += gc.get_referents(each)
    return list(found.values())
