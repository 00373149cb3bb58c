"""Corrupt batches: the stream fails, or the batch is skipped, and set aside on disk first if that is configured."""

from __future__ import annotations

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from kzconsumer.errors import CorruptRecordError, KzConsumerError
from kzconsumer.fetcher.corrupt_batches import CorruptPolicy
from kzconsumer.fetcher.fetch_rules import Unusable
from kzconsumer.settings.sections import FetchSettings
from tests.core.plain.test_corrupt_batch import FIRST, SECOND, THIRD, unusable
from tests.support.disk import watched_disk
from tests.support.record_sets import message

LOG = FIRST + SECOND + THIRD
CORRUPT = unusable(10, len(FIRST))
LARGE = message(1, 10, 5, None, bytes(1000))[:500]


async def skipped(
    settings: FetchSettings, found: Unusable = CORRUPT, log: bytes = LOG, *, leads_on: bool = True
) -> int | None:
    async def asked(offset: int) -> bool:
        return leads_on

    return await CorruptPolicy(settings).way_over(found, memoryview(log), 30, asked)


def setting_aside(directory: Path) -> FetchSettings:
    return FetchSettings(on_corrupt="quarantine", quarantine=str(directory))


async def test_without_a_policy_the_stream_fails() -> None:
    with pytest.raises(CorruptRecordError), capture_logs() as logs:
        await skipped(FetchSettings())
    assert logs == []


async def test_a_skipped_batch_is_reported_as_lost() -> None:
    with capture_logs() as logs:
        assert await skipped(FetchSettings(on_corrupt="skip")) == 20
    (line,) = logs
    assert [line[name] for name in ("log_level", "topic", "partition", "first", "until", "kept")] == [
        "error", "orders", 3, 10, 20, None,
    ]  # fmt: skip


async def test_a_batch_that_was_set_aside_is_on_disk_with_all_its_bytes(tmp_path: Path) -> None:
    with watched_disk(tmp_path) as disk, capture_logs() as logs:
        assert await skipped(setting_aside(tmp_path / "of" / "batches")) == 20
        (kept,) = (tmp_path / "of" / "batches").iterdir()
        disk.require(kept)
    assert (kept.name, kept.read_bytes()) == ("orders-3-10.bin", SECOND)
    assert logs[0]["kept"] == str(kept)
    assert await skipped(setting_aside(tmp_path / "of" / "batches")) == 20, "it is fetched again after a restart"


async def test_a_batch_that_cannot_be_set_aside_is_not_skipped(tmp_path: Path) -> None:
    (tmp_path / "orders-3-10.bin").write_bytes(b"of an earlier topic")
    with pytest.raises(
        KzConsumerError, match=r"orders-3: the corrupt batch at offset 10 cannot be set aside: .*move it"
    ):
        await skipped(setting_aside(tmp_path))
    assert (tmp_path / "orders-3-10.bin").read_bytes() == b"of an earlier topic"


async def test_a_truncated_message_is_skipped_only_if_the_log_continues_after_it() -> None:
    cut_off = unusable(10, 0, cut_off=True)
    assert await skipped(FetchSettings(on_corrupt="skip"), cut_off, LARGE) == 11
    with pytest.raises(KzConsumerError, match="nothing after it can be read"):
        await skipped(FetchSettings(on_corrupt="skip"), cut_off, LARGE, leads_on=False)
