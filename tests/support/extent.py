"""How much a run does of long tests: a fixed share, a small one (`make quick`), or much more (`make thorough`).

`KZCONSUMER_NIGHTLY` is the seed of such a run, and of the tests that `make nightly` runs. It is printed; setting it to
that value repeats the run.
"""

from __future__ import annotations

import os
from typing import TypeVar

import pytest

T = TypeVar("T")

NIGHTLY = int(os.environ["KZCONSUMER_NIGHTLY"]) if "KZCONSUMER_NIGHTLY" in os.environ else None
_QUICK = os.environ.get("HYPOTHESIS_PROFILE") == "quick"

only_nightly = pytest.mark.only_nightly
"""Skipped otherwise (tests/conftest.py): another test proves the same in `make test`."""


def extent(usual: T, nightly: T, quick: T | None = None) -> T:
    """The share of `make test`, or that of `make thorough`, or that of `make quick` if it has one of its own."""
    if _QUICK and quick is not None:
        return quick
    return usual if NIGHTLY is None else nightly


def seeds(usual: int, nightly: int) -> list[int]:
    """0 and up, or as many random ones."""
    return list(range(usual)) if NIGHTLY is None else [NIGHTLY + number for number in range(nightly)]
