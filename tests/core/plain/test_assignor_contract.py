"""Our assignors keep the contract, and for each of its promises an assignor that breaks it is detected."""

from __future__ import annotations

import itertools
import random
import subprocess
import sys
from typing import Any, cast

import pytest
from hypothesis import Phase, settings

from kzconsumer import assignors as range_assignor
from kzconsumer.assignors import AssignmentContext, Assignor, assign_legacy, assign_roundrobin
from kzconsumer.model import ConsumerThreadId, TopicPartition
from kzconsumer.testing import AssignorContract
from kzconsumer_sticky import assignor as sticky
from tests.support.extent import extent, only_nightly

Assignment = dict[TopicPartition, ConsumerThreadId]


class TestRange(AssignorContract):
    assignor = staticmethod(range_assignor.assign_range)


class TestRoundRobin(AssignorContract):
    assignor = staticmethod(assign_roundrobin)


@only_nightly  # the same code as above; the order in which it deals: test_assignors.py
class TestRoundRobinLegacy(AssignorContract):
    assignor = staticmethod(assign_legacy)


class TestSticky(AssignorContract):
    assignor = staticmethod(sticky.assign)


class APlainFunction(AssignorContract):
    """Without staticmethod."""

    assignor = range_assignor.assign_range  # type: ignore[assignment]


def test_an_assignor_may_be_given_without_staticmethod() -> None:
    APlainFunction().test_partitions_go_only_to_threads_that_subscribe()


def forgets_the_last(context: AssignmentContext) -> Assignment:
    return dict(list(range_assignor.assign_range(context).items())[:-1])


def invents_one(context: AssignmentContext) -> Assignment:
    owners = range_assignor.assign_range(context)
    for topic, threads in context.threads.items():
        owners[TopicPartition(topic, len(context.partitions[topic]))] = threads[0]
    return owners


def gives_plain_tuples(context: AssignmentContext) -> Assignment:
    return {cast(TopicPartition, tuple(each)): thread for each, thread in range_assignor.assign_range(context).items()}


def ignores_subscriptions(context: AssignmentContext) -> Assignment:
    ring = itertools.cycle(sorted({thread for threads in context.threads.values() for thread in threads}))
    return {
        TopicPartition(topic, n): next(ring) for topic in sorted(context.threads) for n in context.partitions[topic]
    }


_DICE = random.Random(1)


def is_random(context: AssignmentContext) -> Assignment:
    return {
        partition: _DICE.choice(context.threads[partition.topic]) for partition in range_assignor.assign_range(context)
    }


_owners_before: Assignment = {}


def remembers(context: AssignmentContext) -> Assignment:
    for partition, thread in range_assignor.assign_range(context).items():
        if _owners_before.get(partition) not in context.threads[partition.topic]:
            _owners_before[partition] = thread
    return {partition: _owners_before[partition] for partition in range_assignor.assign_range(context)}


def depends_on_the_order_of_topics(context: AssignmentContext) -> Assignment:
    owners = {}
    turn = 0
    for topic, threads in context.threads.items():
        for number in context.partitions[topic]:
            owners[TopicPartition(topic, number)] = threads[turn % len(threads)]
            turn += 1
    return owners


def modifies_its_input(context: AssignmentContext) -> Assignment:
    owners = range_assignor.assign_range(context)
    cast(dict[str, Any], context.partitions).clear()
    return owners


def trusts_hash(context: AssignmentContext) -> Assignment:
    return {
        partition: context.threads[partition.topic][hash(str(partition)) % len(context.threads[partition.topic])]
        for partition in range_assignor.assign_range(context)
    }


def trusts_the_order_of_sets(context: AssignmentContext) -> Assignment:
    sets = AssignmentContext(
        {topic: tuple(set(threads)) for topic, threads in context.threads.items()}, context.partitions
    )
    return range_assignor.assign_range(sets)


# One for each promise comes first.
BROKEN: list[tuple[Assignor, str]] = [
    (forgets_the_last, "every_partition_is_assigned_and_nothing_else"),
    (ignores_subscriptions, "partitions_go_only_to_threads_that_subscribe"),
    (is_random, "the_same_group_gives_the_same_assignment"),
    (depends_on_the_order_of_topics, "the_order_of_the_mappings_does_not_matter"),
    (modifies_its_input, "the_input_is_not_changed"),
    (trusts_hash, "another_process_computes_the_same"),
    (invents_one, "every_partition_is_assigned_and_nothing_else"),
    (gives_plain_tuples, "every_partition_is_assigned_and_nothing_else"),
    (remembers, "the_same_group_gives_the_same_assignment"),
    (trusts_the_order_of_sets, "another_process_computes_the_same"),
    (remembers, "another_process_computes_the_same"),
    (lambda context: {}, "another_process_computes_the_same"),
]


@pytest.mark.parametrize(
    ("broken", "promise"), BROKEN[: extent(6, len(BROKEN))], ids=lambda value: getattr(value, "__name__", value)
)
@pytest.mark.long
def test_a_broken_assignor_is_detected(broken: Assignor, promise: str, monkeypatch: pytest.MonkeyPatch) -> None:
    contract = type("Contract", (AssignorContract,), {"assignor": staticmethod(broken)})()
    test = getattr(AssignorContract, f"test_{promise}")
    found_suffices = settings(test._hypothesis_internal_use_settings, phases=[Phase.generate])  # no smallest example
    monkeypatch.setattr(test, "_hypothesis_internal_use_settings", found_suffices)
    # Without the smallest example, to print the one that was found takes longer than to find it.
    monkeypatch.setattr(test, "_hypothesis_internal_print_given_args", False, raising=False)
    with pytest.raises((AssertionError, BaseExceptionGroup)):
        getattr(contract, f"test_{promise}")()


def test_without_hypothesis_the_error_names_what_to_install() -> None:
    program = "import sys; sys.modules['hypothesis'] = None; from kzconsumer.testing import AssignorContract"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert "AssignorContract needs hypothesis: pip install hypothesis" in done.stderr
