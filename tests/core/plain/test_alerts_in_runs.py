"""Each alert rule with the series of a run in which a member stops in that way, and of runs in which it does not.

The member is the product in a simulated world, scraped every 15 seconds of its time for the better part of an hour;
promtool evaluates the rules over what it told. So a rule is tested by what is told, not by what its author expects.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from kzconsumer.logs.troubles import Trouble
from kzconsumer.model import TopicPartition
from kzconsumer.status.metrics import families
from kzconsumer.zookeeper.operations import Create
from tests.core.plain.test_status_metrics import Given
from tests.support.programs import PROMTOOL, need
from tests.support.simulated.observed import Observed, observed

pytestmark = [pytest.mark.long, pytest.mark.needs(PROMTOOL)]
RULES = Path(__file__).parents[3] / "monitoring" / "alerts.yml"
SCRAPE = 15
FIRST = TopicPartition("t", 0)
Series = dict[str, list[str]]
Happening = Callable[[Observed], None]


def scraped(at: Observed) -> Iterator[tuple[str, float]]:
    """What `/metrics` has at this moment: each series with its value."""
    counts: dict[tuple[str, str], int] = {}
    for event in at.group.events:
        if event["level"] in ("warning", "error"):
            key = event["level"], event["event"]
            counts[key] = counts.get(key, 0) + 1
    troubles = [Trouble(level, event, count, 0.0, 0.0, None) for (level, event), count in counts.items()]
    registry = CollectorRegistry()
    registry.register(Given(list(families(at.observer.report(), at.observer.counters, at.observer.batches, troubles))))
    text = generate_latest(registry).decode()  # type: ignore[no-untyped-call]
    for family in text_string_to_metric_families(text):  # type: ignore[no-untyped-call]
        for sample in family.samples:
            labels = ", ".join(f'{name}="{value}"' for name, value in sorted(sample.labels.items()))
            yield f'{sample.name}{{{labels}, instance="{at.member.name}:9308"}}', sample.value


def recorded(at: Observed, minutes: int, happens: Happening, every: int | None = None) -> Series:
    """A quarter of an hour of rest, then `happens`, once or `every` so many seconds."""
    series: Series = {}
    for scrape in range(minutes * 60 // SCRAPE):
        since = scrape * SCRAPE - 900
        if since == 0 or (since > 0 and every is not None and since % every == 0):
            happens(at)
        at.group.world.pass_time(SCRAPE)
        for name, value in scraped(at):
            known = series.setdefault(name, [])
            known += ["_"] * (scrape - len(known))
            known.append(f"{value:.17g}")
        for known in series.values():
            known += ["_"] * (scrape + 1 - len(known))
    return series


def firing(series: Mapping[str, list[str]], minutes: int, place: Path) -> set[str]:
    """The alerts that fire at the end of any minute. promtool compares: it is told that there are none, and objects."""
    query = 'group by (alertname) (ALERTS{alertstate="firing"})'
    asked = [{"expr": query, "eval_time": f"{minute}m", "exp_samples": []} for minute in range(1, minutes)]
    test: dict[str, Any] = {
        "rule_files": [str(RULES)],
        "evaluation_interval": "30s",
        "tests": [
            {
                "interval": f"{SCRAPE}s",
                "input_series": [{"series": name, "values": " ".join(each)} for name, each in series.items()],
                "promql_expr_test": asked,
            }
        ],
    }
    (place / "run.yml").write_text(yaml.safe_dump(test))
    done = subprocess.run(
        [need(PROMTOOL), "test", "rules", str(place / "run.yml")], capture_output=True, text=True, check=False
    )
    output = done.stdout + done.stderr
    found = set(re.findall(r'alertname=\\?"(\w+)', output))
    assert (done.returncode == 0) == (not found), output
    return found


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


def moved(at: Observed) -> None:
    """A rolling restart of brokers: the partition is without leader for some seconds."""
    at.group.broker_faults.move_leader(FIRST, 8.0)
    at.group.logs.burst(50)


STOPS: dict[str, tuple[Happening, set[str]]] = {
    "cut off": (cut_off, {"KzconsumerLagUnknown", "KzconsumerPartitionStalled"}),
    "a broker that does not answer": (silent_broker, {"KzconsumerLagUnknown", "KzconsumerPartitionStalled"}),
    "no leader": (no_leader, {"KzconsumerLagUnknown", "KzconsumerPartitionStalled"}),
    "a stalled application": (stalled, {"KzconsumerPartitionStalled", "KzconsumerBehind"}),
    "an owner that is no member": (blocked, {"KzconsumerClaimBlocked"}),
    "an unreadable member": (unreadable, {"KzconsumerGroupUnreadable"}),
}


@pytest.mark.parametrize("way", STOPS)
def test_a_group_that_stops_raises_its_alert(way: str, tmp_path: Path) -> None:
    happens, alerts = STOPS[way]
    with observed(silent_logs=way != "an owner that is no member") as at:
        found = firing(recorded(at, 45, happens), 45, tmp_path)
    assert alerts <= found
    # A blocked claim and an unreadable group are tried again and again.
    assert found - alerts <= {"KzconsumerErrors", "KzconsumerJudged", "KzconsumerRebalancesFail"}


def test_records_that_retention_took_raise_an_alert(tmp_path: Path) -> None:
    with observed() as at:
        at.group.pause(at.member, FIRST)
        assert "KzconsumerOffsetsLost" in firing(recorded(at, 25, offsets_lost), 25, tmp_path)


def test_a_group_of_which_nothing_is_heard_raises_an_alert(tmp_path: Path) -> None:
    with observed() as at:
        heard = recorded(at, 10, nothing)
    silent = {name: [*each, *["_"] * 160] for name, each in heard.items()}
    assert firing(silent, 45, tmp_path) == {"KzconsumerNoData"}


@pytest.mark.parametrize(("happens", "every"), [(nothing, None), (rebalancing, 120), (moved, 300)])
def test_a_quiet_a_starting_and_a_rebalancing_group_raise_none(
    happens: Happening, every: int | None, tmp_path: Path
) -> None:
    """The recording begins with the start of the member."""
    with observed(silent_logs=happens is nothing, settled=0.0) as at:
        assert firing(recorded(at, 35, happens, every), 35, tmp_path) == set()
