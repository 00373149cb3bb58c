"""A target of files in an object store in memory. Real stores: `files/servers/test_object_target.py`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.object_target_contract import ObjectTargetContract
from tests.support.store_in_memory import StoreInMemory


class TestObjectTarget(ObjectTargetContract):
    @pytest.fixture(params=["s3", "abfss"])
    def server(self, request: pytest.FixtureRequest) -> Iterator[StoreInMemory]:
        with StoreInMemory(request.param).reached() as store:
            yield store
