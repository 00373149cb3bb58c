"""Each alert rule with the series of a run in which a member stops in that way, and of runs in which it does not.

The member is the product in a simulated world, scraped every 15 seconds of its time, for ten minutes or, at night, the
better part of an hour; promtool evaluates the rules over these samples. So a rule is tested by what members report, not
by what its author expects. `tools/servers/test_alerts_of_servers.py` records real members and exporters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from prometheus_client.samples import Sample

from kzconsumer.logs.setup import Trouble
from kzconsumer.model import TopicPartition
from kzconsumer.status.metrics import families
from kzconsumer.zookeeper.operations import Create
from tests.support.alerts import MISSING, Recording, firing
from tests.support.extent import extent, only_nightly
from tests.support.programs import PROMTOOL
from tests.support.simulated.observed import Observed, observed

pytestmark = [pytest.mark.long, pytest.mark.needs(PROMTOOL)]
SCRAPE = 15
FIRST = TopicPartition("t", 0)
Series = dict[str, list[str]]
Happening = Callable[[Observed], None]


def scraped(at: Observed) -> Iterator[Sample]:
    """What `/metrics` has at this moment; test_status_metrics has that its text says the same."""
    counts: dict[tuple[str, str], int] = {}
    for event in at.group.events:
        if event["level"] in ("warning", "error"):
            key = event["level"], event["event"]
            counts[key] = counts.get(key, 0) + 1
    troubles = [Trouble(level, event, count, 0.0, 0.0, None) for (level, event), count in counts.items()]
    for family in families(at.observer.report(), at.observer.counters, at.observer.batches, troubles):
        yield from family.samples


def recorded(at: Observed, minutes: int, happens: Happening, *, rest: int = 2, every: int | None = None) -> Series:
    """`rest` minutes of rest, then `minutes` that begin with `happens`, once or `every` so many seconds."""
    recording = Recording()
    for since in range(-60 * rest, 60 * minutes, SCRAPE):
        if since == 0 or (since > 0 and every is not None and since % every == 0):
            happens(at)
        at.group.world.pass_time(SCRAPE)
        recording.add(scraped(at), f"{at.member.name}:9308")
    return recording.series


def alerts_of(series: Mapping[str, list[str]], place: Path) -> set[str]:
    return {name for name, _ in firing("alerts.yml", series, SCRAPE, place)}


def nothing(at: Observed) -> None:
    pass


def cut_off(at: Observed) -> None:
    at.group.lose_brokers(at.member)


def silent_broker(at: Observed) -> None:
    at.group.brokers[0].set_silent(True)


def no_leader(at: Observed) -> None:
    at.group.logs.lead(FIRST, -1)


def stalled(at: Observed) -> None:
    """The application does not return from a record."""
    at.member.pace = 1e9
    at.group.logs.burst(10)


def blocked(at: Observed) -> None:
    """An operator's tool, or a client with a bug, writes itself as the owner for good."""
    at.group.delete_owner(FIRST)
    at.group.ensemble.operate(Create(at.group.paths.owner(FIRST), b"somebody-0"))


def offsets_lost(at: Observed) -> None:
    """Retention overtakes a member that was paused."""
    at.group.logs.burst(100)
    at.group.logs.retain(FIRST, at.group.logs.end(FIRST))
    at.group.resume(at.member)


def unreadable(at: Observed) -> None:
    at.group.poison(1e6)


def rebalancing(at: Observed) -> None:
    """Another member comes, or the last one that came goes."""
    others = [each for each in at.group.members if each is not at.member and each.active]
    if others:
        at.group.leave(others[0])
    else:
        at.group.join(f"b{len(at.group.members)}", {"t": 1}, 0.0, in_batches=False)


def transaction(at: Observed) -> None:
    """Its producer has died, and `transaction.timeout.ms` is large."""
    at.group.brokers[0].open[FIRST] = at.group.logs.end(FIRST)
    at.group.logs.burst(10)


def moved(at: Observed) -> None:
    """A rolling restart of brokers: the partition is without leader for some seconds."""
    at.group.broker_faults.move_leader(FIRST, 8.0)
    at.group.logs.burst(50)


#: What happens, the alerts that fire within eight minutes, and those of the half hour that a night has.
STOPS: dict[str, tuple[Happening, set[str], set[str]]] = {
    "cut off": (cut_off, {"KzconsumerLagUnknown", "KzconsumerPartitionStalled"}, set()),
    # At night two more ways to reach no broker.
    "a broker that does not answer": (silent_broker, {"KzconsumerLagUnknown", "KzconsumerPartitionStalled"}, set()),
    "no leader": (no_leader, {"KzconsumerLagUnknown", "KzconsumerPartitionStalled"}, set()),
    "a stalled application": (stalled, {"KzconsumerPartitionStalled"}, {"KzconsumerBehind"}),
    "an owner that is no member": (blocked, {"KzconsumerClaimBlocked"}, set()),
    "an unreadable member": (unreadable, {"KzconsumerGroupUnreadable"}, set()),
    "a transaction that does not end": (transaction, set(), {"KzconsumerTransactionOpen"}),
}


OF_THE_NIGHT = ("a broker that does not answer", "no leader", "a transaction that does not end")


@pytest.mark.parametrize(
    "way", [pytest.param(each, marks=only_nightly if each in OF_THE_NIGHT else ()) for each in STOPS]
)
def test_a_group_that_stops_raises_its_alert(way: str, tmp_path: Path) -> None:
    happens, soon, later = STOPS[way]
    alerts = extent(soon, soon | later)
    committed = (("isolation", "read_committed"),)
    with observed(silent_logs=way != "an owner that is no member", fetch=committed) as at:
        found = alerts_of(recorded(at, extent(8, 30), happens, rest=extent(2, 15)), tmp_path)
    assert alerts <= found
    # A blocked claim and an unreadable group are tried again and again.
    assert found - alerts <= {"KzconsumerErrors", "KzconsumerJudged", "KzconsumerRebalancesFail"}


def test_records_that_retention_took_raise_an_alert(tmp_path: Path) -> None:
    with observed() as at:
        at.group.pause(at.member, FIRST)
        series = recorded(at, extent(5, 10), offsets_lost, rest=extent(2, 15))
        assert "KzconsumerOffsetsLost" in alerts_of(series, tmp_path)


def test_a_group_of_which_nothing_is_heard_raises_an_alert(tmp_path: Path) -> None:
    with observed() as at:
        heard = recorded(at, 6, nothing)
    silent = {name: [*each, *[MISSING] * 160] for name, each in heard.items()}
    assert alerts_of(silent, tmp_path) == {"KzconsumerNoData"}


@pytest.mark.parametrize(("happens", "every"), [(nothing, None), (rebalancing, 120), (moved, 300)])
def test_a_quiet_a_starting_and_a_rebalancing_group_raise_none(
    happens: Happening, every: int | None, tmp_path: Path
) -> None:
    """The recording begins with the start of the member."""
    with observed(silent_logs=happens is nothing, settled=0.0) as at:
        series = recorded(at, extent(9, 20), happens, rest=extent(1, 15), every=every)
        assert alerts_of(series, tmp_path) == set()
