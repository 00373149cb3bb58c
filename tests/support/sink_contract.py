"""The sink contract for our own sinks, with as many kills, zombies and races as the run has time for."""

from __future__ import annotations

from typing import ClassVar

from kzconsumer.testing.sink_contract import SinkContract
from tests.support.extent import extent


class OurSinkContract(SinkContract):
    kills = extent(SinkContract.kills, 40, quick=3)
    zombies = extent(SinkContract.zombies, 20, quick=1)
    races = extent(SinkContract.races, 40, quick=3)
    replayable: ClassVar[bool] = True
    """Otherwise what the contract asks of replayable sinks would be skipped by one that lost its fingerprint."""

    def test_a_sink_that_should_be_replayable_is(self) -> None:
        assert bool(self.group.one().fingerprint) == self.replayable
