"""The ways to specify what `connect` connects to."""

from __future__ import annotations

from pathlib import Path

import pytest

from kzconsumer.consumer import connect_settings
from kzconsumer.errors import ConfigError
from kzconsumer.settings.settings import Settings


def test_settings_a_path_and_keywords_are_the_same(tmp_path: Path) -> None:
    file = tmp_path / "group.toml"
    file.write_text('[zookeeper]\nconnect = "zk1:2181/kafka"\n[group]\nid = "orders"\n')
    loaded = Settings.load(file)
    assert connect_settings(loaded, None, None) is loaded
    assert connect_settings(str(file), None, None) == connect_settings(file, None, None) == loaded
    by_keywords = connect_settings(None, "zk1:2181/kafka", "orders")
    assert (by_keywords.zookeeper, by_keywords.group, by_keywords.fetch) == (
        loaded.zookeeper,
        loaded.group,
        loaded.fetch,
    )


@pytest.mark.parametrize(
    ("settings", "zookeeper", "group"),
    [(None, None, None), (None, "zk1:2181", None), (None, None, "orders"), ("group.toml", "zk1:2181", "orders")],
)
def test_arguments_that_are_missing_or_contradict(settings: str | None, zookeeper: str, group: str) -> None:
    with pytest.raises(TypeError, match=r"connect\(\)"):
        connect_settings(settings, zookeeper, group)


def test_an_invalid_keyword_is_named() -> None:
    with pytest.raises(ConfigError, match=r"connect\(\): \[zookeeper\] connect"):
        connect_settings(None, "", "orders")
