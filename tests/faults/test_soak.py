"""Three minutes of the soak (`make soak` runs an hour): its own program and verdict, at a rate that leaves room beside
other tests.

With the function as sink: what a Spark is put through, `test_chaos_spark` has.
"""

from __future__ import annotations

import pytest

from tests.soak.__main__ import main

SEED = 8


@pytest.mark.timeout(900)
async def test_three_minutes_in_which_everything_happens_once(capsys: pytest.CaptureFixture[str]) -> None:
    complaints = await main(["function"], minutes=2.5, rate=2_000, batch=10_000, every=25.0, seed=SEED)
    assert complaints == 0, capsys.readouterr().out
