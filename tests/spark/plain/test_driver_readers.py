"""Two readers of one group and topic in one driver: the second is refused."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from collections.abc import Callable
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import pytest

from kzconsumer.errors import ConfigError
from kzconsumer.settings.settings import Settings
from kzconsumer_spark.source.query_member import DriverReaders, Reads

LIMIT = 60.0


def settings(group: str = "lake", **subscription: Any) -> Settings:
    tables = {"zookeeper": {"connect": "zk:2181"}, "group": {"id": group}, "subscription": subscription}
    return Settings.from_dict(tables)


ORDERS = settings(topics={"orders": 1})


def other_reader(
    folder: str, wanted: Settings, joined: Event, leaves: Event, leave: Callable[[DriverReaders], object]
) -> None:
    tempfile.tempdir = folder
    readers = DriverReaders(wanted)
    readers.enter(0.0)
    joined.set()
    leaves.wait(LIMIT)
    leave(readers)


class Other:
    """A reader in another process of this driver: a process of Spark's is a child of the driver's Java, as this one is
    of the test's."""

    def __init__(self, folder: Path, wanted: Settings, leave: Callable[[DriverReaders], object]) -> None:
        context = multiprocessing.get_context("fork")
        joined, self._leaves = context.Event(), context.Event()
        self.process = context.Process(target=other_reader, args=(str(folder), wanted, joined, self._leaves, leave))
        self.process.start()
        assert joined.wait(LIMIT)

    def end(self) -> None:
        self._leaves.set()

    def wait(self) -> None:
        self.end()
        self.process.join(LIMIT)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    driver = os.getpid()
    monkeypatch.setattr(os, "getppid", lambda: driver)  # in this process and in those that it forks
    return tmp_path


def test_a_second_reader_is_refused_by_name_until_the_first_has_left(folder: Path) -> None:
    other = Other(folder, ORDERS, DriverReaders.leave)
    readers = DriverReaders(ORDERS)
    with pytest.raises(ConfigError, match=f"topic orders of group lake is read in this driver .* {other.process.pid}"):
        readers.enter(0.0)
    DriverReaders(settings("other", topics={"orders": 1})).enter(0.0)
    other.end()
    readers.enter(LIMIT)  # waits for it
    other.wait()
    readers.leave()
    (ours,) = folder.iterdir()
    assert ours.stat().st_mode & 0o777 == 0o700
    assert len(list(ours.iterdir())) == 1  # of the group "other"


def test_a_reader_that_was_killed_is_none(folder: Path) -> None:
    Other(folder, ORDERS, lambda _: os._exit(9)).wait()
    DriverReaders(ORDERS).enter(0.0)


@pytest.mark.parametrize(
    ("one", "two", "shared"),
    [
        ({"topics": ("a", "b")}, {"topics": ("b",)}, "topic b"),
        ({"topics": ("a",)}, {"topics": ("b",)}, None),
        ({"topics": ("a",)}, {"include": "a|c"}, "topic a"),
        ({"include": "c"}, {"topics": ("a",)}, None),
        ({"exclude": "c"}, {"topics": ("a",)}, "topic a"),
        ({"exclude": "a"}, {"topics": ("a",)}, None),
        ({"include": "a"}, {"exclude": "b"}, "topics by pattern"),
    ],
)
def test_what_two_readers_share(one: dict[str, Any], two: dict[str, Any], shared: str | None) -> None:
    found = [Reads(1, "1", **({"topics": (), "include": None, "exclude": None} | each)) for each in (one, two)]
    assert found[0].shared(found[1]) == shared
    assert (found[1].shared(found[0]) is None) == (shared is None)
