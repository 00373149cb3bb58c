"""Which of two stored offsets counts, depending on the settings, the sink and the reset epoch."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from kzconsumer.brokers.protocol.log_reads import LATEST
from kzconsumer.errors import ConfigError
from kzconsumer.model import TopicPartition
from kzconsumer.offsets.start_rules import Authority, WithBrokers
from kzconsumer.sessions import Sessions
from kzconsumer.settings.sections import OffsetsSettings
from kzconsumer.settings.settings import Settings
from tests.support.owned_ranges import Nothing

offsets = st.none() | st.integers(0, 1 << 40)
epochs = st.integers(0, 5)


@pytest.mark.parametrize(
    ("storage", "dual_commit", "replayable", "expected"),
    [
        ("zookeeper", True, False, Authority.ZOOKEEPER),
        ("zookeeper", False, True, Authority.ZOOKEEPER),
        ("kafka", True, False, Authority.BOTH),
        ("kafka", True, True, Authority.ZOOKEEPER_FIRST),
        ("kafka", False, False, Authority.KAFKA),
    ],
)
def test_settings(storage: str, dual_commit: bool, replayable: bool, expected: Authority) -> None:
    settings = OffsetsSettings(storage=storage, dual_commit=dual_commit)  # type: ignore[arg-type]
    assert Authority.of(settings, replayable=replayable) is expected


@pytest.mark.parametrize(
    ("dual_commit", "replayable", "in_run", "refused"),
    [
        (True, True, False, False),
        (True, False, True, False),
        (True, False, False, False),
        (False, True, False, True),
        (False, False, True, True),
        (False, False, False, False),
    ],
)
async def test_storage_in_the_brokers_alone_is_refused_if_zookeepers_offsets_are_needed(
    dual_commit: bool, replayable: bool, in_run: bool, refused: bool
) -> None:
    settings = Settings.from_dict(
        {
            "zookeeper": {"connect": "zk1"},
            "group": {"id": "orders"},
            "offsets": {"storage": "kafka", "dual_commit": dual_commit},
        }
    )
    if in_run:
        settings = replace(settings, subscription=replace(settings.subscription, stop_at=LATEST))
    destination = Nothing() if replayable else None
    ends = {TopicPartition("t", 0): 5}  # of its own: that is no run of the group
    for stop_at, is_refused in ((None, refused), (ends, refused and replayable)):
        needed = pytest.raises(ConfigError, match=r"\[offsets\] dual_commit: .* set dual_commit = true")
        with needed if is_refused else nullcontext():
            Sessions(settings, destination=destination, stop_at=stop_at)


@pytest.mark.parametrize("epoch", [0, 1, 5])
@pytest.mark.parametrize(
    ("authority", "zookeeper", "begins_at"),
    [
        (Authority.ZOOKEEPER, None, None),
        (Authority.ZOOKEEPER, 4, 4),
        (Authority.ZOOKEEPER, 0, 0),
        (Authority.BOTH, None, 7),
        (Authority.BOTH, 4, 7),
        (Authority.BOTH, 9, 9),
        (Authority.ZOOKEEPER_FIRST, None, 7),
        (Authority.ZOOKEEPER_FIRST, 4, 4),
        (Authority.ZOOKEEPER_FIRST, 0, 0),
        (Authority.ZOOKEEPER_FIRST, 9, 9),
        (Authority.KAFKA, None, 7),
        (Authority.KAFKA, 4, 7),
        (Authority.KAFKA, 9, 7),
    ],
)
def test_an_offset_without_epoch_counts_in_every_epoch(
    authority: Authority, zookeeper: int | None, begins_at: int | None, epoch: int
) -> None:
    """The brokers' offset is 7."""
    assert authority.begin(zookeeper, WithBrokers.read(7, ""), epoch) == begins_at


@given(zookeeper=offsets, authority=st.sampled_from(Authority), kafka=st.integers(0, 1 << 40), at=epochs, now=epochs)
def test_an_offset_from_before_a_reset_no_longer_counts(
    zookeeper: int | None, authority: Authority, kafka: int, at: int, now: int
) -> None:
    ours = WithBrokers(kafka, at)
    assert WithBrokers.read(kafka, ours.metadata) == ours
    if at < now:
        assert authority.begin(zookeeper, ours, now) == zookeeper
    else:
        assert authority.begin(zookeeper, ours, now) == authority.begin(zookeeper, WithBrokers(kafka, None), now)


@given(zookeeper=offsets, authority=st.sampled_from([Authority.ZOOKEEPER, Authority.BOTH, Authority.ZOOKEEPER_FIRST]))
def test_without_an_offset_in_the_brokers_that_of_zookeeper_counts(zookeeper: int | None, authority: Authority) -> None:
    assert authority.begin(zookeeper, None, 0) == zookeeper
    assert Authority.KAFKA.begin(zookeeper, None, 0) is None
