"""Half a minute of `python -m tests.interop` in `make nightly`, and the same with a bug that the judge has to find.

Its own servers and verdict; `core/plain/test_interop_judge.py` has every kind of violation.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interop.__main__ import main
from tests.support.extent import NIGHTLY

SEED = 1
MINUTES = 0.5
MEMBERS = 4

pytestmark = [
    pytest.mark.skipif(NIGHTLY is None, reason="make nightly: two groups with JVMs and Node processes"),
    pytest.mark.timeout(600),
]


async def test_a_group_under_faults(tmp_path: Path) -> None:
    (result,) = await main(SEED, MINUTES, MEMBERS, place=tmp_path)
    assert result.faults
    assert result.verdict.violations == []


async def test_a_bug_is_found(tmp_path: Path) -> None:
    (result,) = await main(SEED, MINUTES, MEMBERS, "claim-at-once", tmp_path)
    assert "not released" in {violation.kind for violation in result.verdict.violations}
