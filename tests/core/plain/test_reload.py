"""How a changed configuration is applied: which changes apply at once, which need a restart."""

from __future__ import annotations

from typing import Any

import pytest

from kzconsumer.service.stop_and_reload import LIVE, REJOINING, compare
from kzconsumer.settings.settings import Settings
from kzconsumer.settings.table_reader import keys_of


def settings(**tables: dict[str, Any]) -> Settings:
    least: dict[str, Any] = {"zookeeper": {"connect": "zk1"}, "group": {"id": "orders"}}
    return Settings.from_dict(least | {name: least.get(name, {}) | keys for name, keys in tables.items()})


def test_live_keys_are_applied_and_all_others_reported() -> None:
    old = settings(log={"level": "info"}, fetch={"max_bytes": "1MiB"}, subscription={"topics": {"a": 1}})
    new = settings(
        log={"level": "debug"},
        fetch={"max_bytes": "2MiB", "rate_limit": "1MiB"},
        subscription={"topics": {"a": 2}},
        batch={"max_records": 7},
    )
    change = compare(old, new)
    assert sorted(change.applied) == ["batch.max_records", "fetch.rate_limit", "log.level", "subscription.topics"]
    assert change.rejoins
    assert sorted(change.needs_restart) == ["fetch.max_bytes"]
    assert change.settings == settings(
        log={"level": "debug"},
        fetch={"max_bytes": "1MiB", "rate_limit": "1MiB"},
        subscription={"topics": {"a": 2}},
        batch={"max_records": 7},
    )
    again = compare(change.settings, new)
    assert (again.applied, again.rejoins) == ((), False), "an applied change is no longer a change"
    assert again.needs_restart == change.needs_restart, "settings that need a restart are reported until then"


def test_an_added_sink_needs_a_restart() -> None:
    change = compare(settings(), settings(sink={"plugin": "jsonlines"}))
    assert (change.applied, change.rejoins) == ((), False)
    assert {"sink.plugin", "sink.options"} <= set(change.needs_restart)


def test_another_way_to_write_a_value_is_no_change() -> None:
    change = compare(
        settings(offsets={"commit_interval": "60s"}),
        Settings.from_dict(
            {"zookeeper": {"connect": "zk1"}, "group": {"id": "orders"}, "offsets": {"commit_interval": "1m"}},
            source="elsewhere.toml",
        ),
    )
    assert (change.applied, change.needs_restart) == ((), ())


def test_a_removed_limit_no_longer_applies() -> None:
    change = compare(settings(fetch={"rate_limit": 5}), settings())
    assert change.applied == ("fetch.rate_limit",)
    assert change.settings.fetch.rate_limit is None


def test_limits_and_floors_change_together() -> None:
    small = settings(batch={"min_records": 10, "max_records": 20})
    large = settings(batch={"min_records": 30, "max_records": 40})
    assert compare(small, large).settings == large
    assert compare(large, small).settings == small


def test_a_topic_filter_can_replace_topics() -> None:
    named, listed = settings(subscription={"topics": {"a": 1}}), settings(subscription={"include": "a.*"})
    for old, new in ((named, listed), (listed, named)):
        assert (compare(old, new).settings, compare(old, new).rejoins) == (new, True)


def test_topics_that_do_not_go_with_the_present_topic_of_dead_letters_need_a_restart() -> None:
    """That topic needs one. Joined again, the daemon would end: it would consume its own dead letters."""
    old, new = (
        settings(
            subscription={"topics": dict.fromkeys(topics, 1)},
            rejected={"policy": "dead-letter", "topic": letters},
            log={"level": level},
        )
        for topics, letters, level in (("a", "b", "info"), ("ab", "c", "debug"))
    )
    change = compare(old, new)
    assert (change.applied, change.rejoins) == (("log.level",), False)
    assert sorted(change.needs_restart) == ["rejected.topic", "subscription.topics"]
    assert change.settings.subscription == old.subscription


@pytest.mark.parametrize("before", [None, "end"])
@pytest.mark.parametrize("after", [None, "end"])
def test_a_run_keeps_the_topics_that_it_began_with(before: str | None, after: str | None) -> None:
    """Also one that the new file would begin."""
    old = settings(subscription={"topics": {"a": 1}} | ({"stop_at": before} if before else {}))
    new = settings(subscription={"topics": {"b": 1}} | ({"stop_at": after} if after else {}))
    in_run = before is not None or after is not None
    assert compare(old, new).rejoins == (not in_run)
    assert ("subscription.topics" in compare(old, new).needs_restart) == in_run


@pytest.mark.parametrize("place", sorted(LIVE | REJOINING))
def test_live_keys_exist(place: tuple[str, str]) -> None:
    assert place in {place for place, _, _ in keys_of(settings())}
