"""Contracts of assignors and sinks, as test classes. Read `sink_contract` (the tests of a sink) first.

`sink_group`: its members and logs, and what it checks after each write; `sink_member`: processes, and how they are
killed. `assignor_contract`; `assignment_worker` runs an assignor in another process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kzconsumer.testing.assignor_contract import AssignorContract
    from kzconsumer.testing.sink_contract import SinkContract, contract_context

__all__ = ["AssignorContract", "SinkContract", "contract_context"]


def __getattr__(name: str) -> object:
    if name == "AssignorContract":
        from kzconsumer.testing.assignor_contract import AssignorContract

        return AssignorContract
    if name in ("SinkContract", "contract_context"):
        from kzconsumer.testing import sink_contract

        return getattr(sink_contract, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
