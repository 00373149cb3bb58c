"""A soak of `make thorough` (`make soak` runs an hour, `make nightly` twenty minutes with Spark and without).

Its own program and verdict, with a function as the sink. Only a long run can judge memory; each of its faults has tests
of its own.
"""

from __future__ import annotations

import pytest

from tests.soak.__main__ import main
from tests.support.extent import NIGHTLY

SEED = 8 if NIGHTLY is None else NIGHTLY
MINUTES, EVERY = 20.0, 25.0


@pytest.mark.skipif(NIGHTLY is None, reason="make soak")
@pytest.mark.timeout(60 * MINUTES + 600)
async def test_every_fault_many_times(capsys: pytest.CaptureFixture[str]) -> None:
    complaints = await main(["function"], MINUTES, rate=2_000, batch=10_000, every=EVERY, seed=SEED)
    assert complaints == 0, capsys.readouterr().out
