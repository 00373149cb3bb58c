"""Invalid arguments are rejected before anything is registered: no server is running."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import numpy as np
import pytest

import kzconsumer
from kzconsumer import sessions
from kzconsumer.consumer import ConsumerConnector, connect_settings
from kzconsumer.errors import ConfigError, NotOwnedError, NotPermittedError, OffsetLostError
from kzconsumer.model import checked_offset
from kzconsumer.settings.settings import Settings
from tests.support.members import settings

UNREACHABLE = "127.0.0.1:1"


class NotAsync(kzconsumer.RebalanceListener):
    def on_revoked(self, generation: int, partitions: object) -> None: ...  # type: ignore[override]


class TooFew(kzconsumer.RebalanceListener):
    async def on_lost(self, partitions: object) -> None: ...  # type: ignore[override]


class NoNumber(kzconsumer.RebalanceListener):
    deadline = "5s"  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("topics", "kind", "words"),
    [
        (["orders"], TypeError, "a mapping to numbers of streams"),
        ("orders", TypeError, "a mapping to numbers of streams"),
        ({"orders": "2"}, TypeError, "a mapping to numbers of streams"),
        ({"orders": True}, TypeError, "a mapping to numbers of streams"),
        ({}, ValueError, "at least one stream"),
        ({"orders": 0}, ValueError, "at least one stream"),
        ({"a b": 1}, ValueError, "'a b' is not a topic name"),
        ({1: 1}, ValueError, "1 is not text: it needs quotes"),
    ],
)
async def test_topics(topics: Any, kind: type[Exception], words: str) -> None:
    async with kzconsumer.connect(settings(UNREACHABLE, "g")) as consumer:
        with pytest.raises(kind, match=words):
            await consumer.create_message_streams(topics)


@pytest.mark.parametrize(
    ("topics", "streams", "kind"),
    [
        ("orders.*", 1, TypeError),
        (kzconsumer.Include("orders.*"), 0, ValueError),
        (kzconsumer.Include("orders.*"), True, TypeError),
        (kzconsumer.Include("(?P<name>a)"), 1, ValueError),
    ],
)
async def test_lists(topics: Any, streams: Any, kind: type[Exception]) -> None:
    async with kzconsumer.connect(settings(UNREACHABLE, "g")) as consumer:
        with pytest.raises(kind):
            await consumer.create_message_streams_by_filter(topics, streams)


@pytest.mark.parametrize("wrong", ["orders", ("orders",), ("orders", "0"), (0, "orders"), ("orders", True), 7, None])
async def test_partitions(wrong: Any) -> None:
    words = re.escape('a partition is given as TopicPartition("orders", 0)')
    async with kzconsumer.connect(settings(UNREACHABLE, "g")) as consumer:
        for call in (consumer.pause, consumer.resume):
            with pytest.raises(TypeError, match=words):
                call([wrong])
        with pytest.raises(TypeError, match=words):
            await consumer.seek(wrong, 0)
        for look in (consumer.beginning_offsets, consumer.end_offsets):
            with pytest.raises(TypeError, match=words):
                await look([wrong])
        with pytest.raises(TypeError, match=words):
            await consumer.offsets_for_times({wrong: 0})
    with pytest.raises(TypeError, match=words):
        async with kzconsumer.connect(settings(UNREACHABLE, "g"), stop_at={wrong: 0}):
            pass


@pytest.mark.parametrize(
    ("wrong", "kind"),
    [(5.0, TypeError), (True, TypeError), ("5", TypeError), (None, TypeError), (-1, ValueError), (1 << 63, ValueError)],
)
async def test_offsets(wrong: Any, kind: type[Exception]) -> None:
    partition = kzconsumer.TopicPartition("orders", 0)
    async with kzconsumer.connect(settings(UNREACHABLE, "g")) as consumer:
        with pytest.raises(kind, match="offset"):
            await consumer.seek(partition, wrong)
    with pytest.raises(kind, match="offset"):
        async with kzconsumer.connect(settings(UNREACHABLE, "g"), stop_at={partition: wrong}):
            pass


def test_an_integer_of_numpy_is_an_offset() -> None:
    assert (checked_offset(np.int64(7)), type(checked_offset(np.int64(7)))) == (7, int)
    assert checked_offset((1 << 63) - 1) == (1 << 63) - 1


@pytest.mark.parametrize(
    ("wrong", "kind"),
    [
        ([("orders", 0)], TypeError),
        ({("orders", 0): 1.5}, TypeError),
        ({("orders", 0): -1}, ValueError),
        ({("orders", 0): 1 << 63}, ValueError),
    ],
)
async def test_times(wrong: Any, kind: type[Exception]) -> None:
    async with kzconsumer.connect(settings(UNREACHABLE, "g")) as consumer:
        with pytest.raises(kind, match="ms since 1970"):
            await consumer.offsets_for_times(wrong)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"listener": kzconsumer.RebalanceListener}, "an instance of a class derived from RebalanceListener"),
        ({"listener": object()}, "an instance of a class derived from RebalanceListener"),
        ({"listener": NotAsync()}, "NotAsync.on_revoked is not async"),
        ({"listener": TooFew()}, r"TooFew.on_lost cannot be called as \(generation, partitions\)"),
        ({"listener": NoNumber()}, "the listener's deadline is a number of seconds, not '5s'"),
        ({"stop_at": "end"}, "a mapping of partitions to offsets"),
        ({"settings": {"group": {"id": "g"}}}, r"a kzconsumer.Settings \(Settings.from_dict\), not dict"),
    ],
)
async def test_other_arguments(wrong: Any, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        async with kzconsumer.connect(**{"settings": settings(UNREACHABLE, "g"), **wrong}):
            pass


async def test_how_records_are_acknowledged_is_one_of_two_words() -> None:
    with pytest.raises(ValueError, match='"implicit" or "explicit", not \'auto\''):
        async with kzconsumer.connect(settings(UNREACHABLE, "g"), acknowledge="auto"):  # type: ignore[arg-type]
            pass


async def test_a_group_does_not_read_its_own_dead_letters() -> None:
    kept = settings(UNREACHABLE, "g", rejected={"policy": "dead-letter", "topic": "letters"})
    async with kzconsumer.connect(kept) as consumer:
        with pytest.raises(ValueError, match="'letters' is the dead-letter topic"):
            await consumer.create_message_streams({"orders": 1, "letters": 1})
        with pytest.raises(ValueError, match="'letters' is the dead-letter topic"):
            await consumer.create_message_streams_by_filter(kzconsumer.Include(".*"))


async def test_a_connector_without_streams_owns_nothing_and_looks_up_nothing() -> None:
    partition = kzconsumer.TopicPartition("orders", 0)
    async with kzconsumer.connect(settings(UNREACHABLE, "g")) as consumer:
        for look in (consumer.beginning_offsets, consumer.end_offsets):
            with pytest.raises(RuntimeError, match="create the streams first"):
                await look([partition])
        with pytest.raises(RuntimeError, match="create the streams first"):
            await consumer.offsets_for_times({partition: 0})
        with pytest.raises(NotOwnedError):
            await consumer.seek(partition, 0)
        assert (consumer.run, consumer.positions(), consumer.paused) == (None, [], frozenset())


async def test_streams_are_created_once() -> None:
    with anyio.fail_after(5):
        async with kzconsumer.connect(settings(UNREACHABLE, "g")) as consumer, anyio.create_task_group() as tasks:
            tasks.start_soon(consumer.create_message_streams, {"orders": 1})
            await anyio.lowlevel.checkpoint()
            with pytest.raises(RuntimeError, match="once per connector"):
                await consumer.create_message_streams({"bills": 1})
            with pytest.raises(RuntimeError, match="once per connector"):
                await consumer.create_message_streams_by_filter(kzconsumer.Include(".*"))
            await consumer.leave()


@pytest.mark.parametrize("error", [ValueError("x"), ExceptionGroup("two", [ValueError("x"), KeyError("y")])])
async def test_what_the_block_raises_comes_out_as_it_is(error: Exception) -> None:
    for raised in (error, ExceptionGroup("one", [error])):
        with pytest.raises(type(raised)) as caught:
            async with kzconsumer.connect(settings(UNREACHABLE, "g")):
                raise raised
        assert caught.value is raised


async def test_an_error_of_a_member_comes_out_of_the_tasks_of_an_application() -> None:
    error = OffsetLostError("lost")
    with pytest.raises(OffsetLostError) as caught:
        async with kzconsumer.connect(settings(UNREACHABLE, "g")):
            raise ExceptionGroup("tasks", [error])
    assert caught.value is error


async def test_a_block_that_another_task_leaves_is_named() -> None:
    """So do fixtures of pytest-asyncio."""
    block = kzconsumer.connect(settings(UNREACHABLE, "g"))
    await asyncio.create_task(block.__aenter__())
    with pytest.raises(RuntimeError) as raised:
        await block.__aexit__(None, None, None)
    assert "is left by the task that entered it" in raised.value.__notes__[0]


def test_another_event_loop_than_that_of_asyncio() -> None:
    connecting = kzconsumer.connect(settings(UNREACHABLE, "g")).__aenter__()
    with pytest.raises(RuntimeError, match=r"start the program with asyncio.run\(\)"):
        connecting.send(None)  # as a task of trio does


async def test_one_partition_instead_of_a_collection() -> None:
    async with kzconsumer.connect(settings(UNREACHABLE, "g")) as consumer:
        with pytest.raises(TypeError, match="'orders'"):
            consumer.pause(kzconsumer.TopicPartition("orders", 0))  # type: ignore[arg-type]


async def test_a_plain_tuple_is_accepted_as_a_partition() -> None:
    async with kzconsumer.connect(settings(UNREACHABLE, "g")) as consumer:
        consumer.pause([("orders", 0)])  # type: ignore[list-item]
        (paused,) = consumer.paused
        assert str(paused) == "orders-0"


@pytest.mark.parametrize("before", [False, True])
async def test_closing_before_zookeeper_answers_ends_the_streams(before: bool) -> None:
    configured = settings(UNREACHABLE, "g")
    with anyio.fail_after(5):
        async with kzconsumer.connect(configured) as consumer, anyio.create_task_group() as tasks:
            if before:
                await consumer.leave()
            else:
                tasks.start_soon(leave_soon, consumer)
            streams = await consumer.create_message_streams({"orders": 2})
            assert len(streams["orders"]) == 2
            for stream in streams["orders"]:
                assert [message async for message in stream] == []


async def leave_soon(consumer: ConsumerConnector) -> None:
    await anyio.sleep(0.1)
    await consumer.leave()


async def test_a_member_that_fails_before_it_has_joined_has_not_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*arguments: object, **more: object) -> None:
        raise NotPermittedError("/consumers/g")

    async def join() -> None:
        async with kzconsumer.connect(settings(UNREACHABLE, "g")) as consumer:
            await consumer.create_message_streams({"orders": 1})
            joined.append(consumer)

    joined: list[ConsumerConnector] = []
    monkeypatch.setattr(sessions, "open_session", fails)
    with pytest.raises(NotPermittedError):
        await join()
    assert joined == []


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
