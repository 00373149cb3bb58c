"""Credentials of an object store that are missing or refused: the start fails soon, with a line that names them."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from kzconsumer.errors import ConfigError, SinkError
from kzconsumer.testing.sink_contract import contract_context
from kzconsumer_files.parquet import ParquetSink
from kzconsumer_sandbox.servers.configuration import HOST, free_port
from tests.support.object_store import ObjectStore

pytestmark = pytest.mark.timeout(120)
MOST_SECONDS = 30.0


async def start(store: ObjectStore) -> None:
    async with ParquetSink({"path": "s3://bucket/lake", "store_options": store.options}, contract_context()):
        pass


async def test_credentials_that_are_missing_or_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control is the same start with credentials; the store looks at them once it has its bucket."""
    with ObjectStore.running(tmp_path / "open") as store:
        for key, value in store.environment.items():
            monkeypatch.setenv(key, value)
        await start(store)
    monkeypatch.setenv("INITIAL_NO_AUTH_ACTION_COUNT", "2")  # for moto
    with ObjectStore.running(tmp_path / "closed") as store:
        began = time.monotonic()
        with pytest.raises(
            ConfigError, match=r"s3://bucket/lake cannot be used: .* 403 Forbidden: .*InvalidAccessKeyId"
        ):
            await start(store)
        for key in store.environment:
            monkeypatch.delenv(key)
        monkeypatch.setenv("AWS_METADATA_ENDPOINT", f"http://{HOST}:{free_port()}")  # a machine without a role
        with pytest.raises(SinkError) as caught:
            await start(store)
        where = "parquet files in s3://bucket/lake: s3://bucket/lake: "
        way_out = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment, or give this machine a role; "
        assert str(caught.value).startswith(f"{where}no credentials: {way_out}")
        assert "\n" not in str(caught.value)
        assert time.monotonic() - began < MOST_SECONDS
