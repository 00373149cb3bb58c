"""What commands that run inside the test process leave behind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture(autouse=True)
def log_set_up_by_nobody() -> Iterator[None]:
    yield
    structlog.reset_defaults()
