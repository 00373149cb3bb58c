"""A short soak with each of its faults once (`make soak` runs an hour, `make nightly` twenty minutes).

Its own program and verdict, at a rate that leaves room beside other tests, with a function as the sink:
`test_chaos_spark` has the Spark sink. Only a long run can judge memory.
"""

from __future__ import annotations

import pytest

from tests.soak.__main__ import main
from tests.support.extent import NIGHTLY, extent

SEED = 8 if NIGHTLY is None else NIGHTLY
MINUTES, EVERY = extent((0.5, 8.0), (20.0, 25.0))


@pytest.mark.timeout(60 * MINUTES + 600)
async def test_each_fault_once(capsys: pytest.CaptureFixture[str]) -> None:
    complaints = await main(["function"], MINUTES, rate=2_000, batch=10_000, every=EVERY, seed=SEED)
    assert complaints == 0, capsys.readouterr().out
