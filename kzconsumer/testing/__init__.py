"""For plugin authors and our own tests: contracts as test classes, record sets as brokers send them.

Owns nothing. `AssignorContract` is imported when it is asked for, since it needs hypothesis.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kzconsumer.testing.assignor_contract import AssignorContract

__all__ = ["AssignorContract"]


def __getattr__(name: str) -> object:
    if name == "AssignorContract":
        from kzconsumer.testing.assignor_contract import AssignorContract

        return AssignorContract
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
