"""The model's types: how they are formatted, parsed and ordered."""

from __future__ import annotations

import pytest

from kzconsumer.model import Broker, ConsumerThreadId, OffsetRange, TopicPartition, utf16_order


def test_a_thread_id_round_trips() -> None:
    thread = ConsumerThreadId("g1_vm-1795259941902-921d0489", 12)
    assert str(thread) == "g1_vm-1795259941902-921d0489-12"
    assert ConsumerThreadId.parse(str(thread)) == thread


@pytest.mark.parametrize("text", ["", "0", "-0", "consumer", "consumer-", "consumer-x", "consumer-1.5"])
def test_invalid_thread_ids(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        ConsumerThreadId.parse(text)


def test_threads_are_ordered_as_text() -> None:
    threads = [ConsumerThreadId("me", number) for number in range(12)]
    assert [thread.thread for thread in sorted(threads)] == [0, 1, 10, 11, 2, 3, 4, 5, 6, 7, 8, 9]
    assert max(threads).thread == 9
    assert ConsumerThreadId("me", 10) < ConsumerThreadId("me", 2)
    assert ConsumerThreadId("me", 2) > ConsumerThreadId("me", 10)


def test_threads_are_ordered_by_their_whole_text() -> None:
    """ "a-1" with thread 0 against "a" with thread 2: the texts are a-1-0 and a-2."""
    assert ConsumerThreadId("a-1", 0) < ConsumerThreadId("a", 2)
    assert ConsumerThreadId("a", 2) > ConsumerThreadId("a-1", 0)


def test_text_is_ordered_as_java_orders_it() -> None:
    """U+1F600 is a surrogate pair in UTF-16 (D83D DE00), so it sorts before U+FF5E though its code point is higher."""
    assert sorted(["\uff5e", "\U0001f600", "a", "B"], key=utf16_order) == ["B", "a", "\U0001f600", "\uff5e"]
    assert utf16_order("\ud800") == b"\xd8\x00"


def test_a_range_and_its_partition() -> None:
    part = OffsetRange("orders", 3, 7, 9)
    assert part.topic_partition == TopicPartition("orders", 3)
    assert (str(part), str(part.topic_partition)) == ("orders-3[7..9)", "orders-3")


def test_a_broker_with_another_address_is_a_different_one() -> None:
    assert Broker(1, "a", 9092) != Broker(1, "a", 9093)
    assert len({Broker(1, "a", 9092), Broker(1, "a", 9092)}) == 1
