"""The contract of every assignor, as tests. They do not cover how even or how sticky an assignment is.

hypothesis, which comes with the extra `testing`, generates the groups.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from types import FunctionType
from typing import ClassVar

import msgspec

from kzconsumer.assignors import AssignmentContext, Assignor
from kzconsumer.group.assignment import GroupSnapshot
from kzconsumer.model import ConsumerThreadId, TopicPartition
from kzconsumer.registry.group_records import Registration
from kzconsumer.registry.nodes import Topic
from kzconsumer.testing.assignment_worker import assign_elsewhere

try:
    from hypothesis import HealthCheck, Phase, given, settings
    from hypothesis import strategies as st
except ImportError as error:
    raise ImportError("AssignorContract needs hypothesis: pip install hypothesis") from error

_TOPICS = ("Aa", "BB", "events", "t-1")  # Java's hashes of the first two are equal
_PARTITIONS = st.integers(0, 12).map(lambda number: Topic(tuple(range(number)), 1))
_STREAMS = st.one_of(st.integers(1, 3), st.just(11))  # thread -10 sorts before -2
_SUBSCRIPTION = st.dictionaries(st.sampled_from(_TOPICS), _STREAMS, max_size=len(_TOPICS))


# Generated ids, and any text that a znode's name can hold, as applications may set it.
_CONSUMER = st.one_of(
    st.integers(0, 15).map(lambda number: f"group_host-1700000000000-{number:08x}"),
    st.text(st.characters(min_codepoint=0x20, exclude_characters="/\x7f", exclude_categories=["Cc", "Cs"]), min_size=1),
)

GROUPS: st.SearchStrategy[GroupSnapshot] = st.builds(
    GroupSnapshot,
    members=st.dictionaries(_CONSUMER, _SUBSCRIPTION.map(Registration.of_topics), max_size=5),
    all_topics=st.just(_TOPICS),
    topics=st.dictionaries(st.sampled_from(_TOPICS), _PARTITIONS),
)
"""Groups of up to five members: idle ones, several streams, topics that do not exist or have no partition."""

CONTEXTS = GROUPS.map(GroupSnapshot.context)
"""What an assignor is given for such groups."""


# One test runs for several classes, and on machines that may be slow.
_any_class = settings(
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
    suppress_health_check=[HealthCheck.differing_executors, HealthCheck.too_slow],
)
_few = settings(_any_class, max_examples=2, phases=[Phase.generate], database=None)


class AssignorContract:
    """Inherit in a class that pytest collects, and set `assignor` to the function under test:

    class TestMine(AssignorContract):
        assignor = staticmethod(mine.assign)
    """

    assignor: ClassVar[Assignor]

    def __init_subclass__(cls) -> None:
        if isinstance(function := cls.__dict__.get("assignor"), FunctionType):
            cls.assignor = staticmethod(function)  # or it would be called as a method

    @_any_class
    @given(context=CONTEXTS)
    def test_every_partition_is_assigned_and_nothing_else(self, context: AssignmentContext) -> None:
        expected = {TopicPartition(topic, n) for topic in context.threads for n in context.partitions[topic]}
        assignment = self.assignor(context)
        assert isinstance(assignment, Mapping)
        assert set(assignment) == expected
        assert all(isinstance(partition, TopicPartition) for partition in assignment)

    @_any_class
    @given(context=CONTEXTS)
    def test_partitions_go_only_to_threads_that_subscribe(self, context: AssignmentContext) -> None:
        for partition, thread in self.assignor(context).items():
            assert isinstance(thread, ConsumerThreadId)
            assert thread in context.threads.get(partition.topic, ()), f"{thread} does not subscribe to {partition}"

    @_any_class
    @given(group=GROUPS)
    def test_the_same_group_gives_the_same_assignment(self, group: GroupSnapshot) -> None:
        before = dict(self.assignor(group.context()))
        for smaller in _each_without_one(group):
            self.assignor(smaller.context())
        assert dict(self.assignor(group.context())) == before

    @_any_class
    @given(context=CONTEXTS, data=st.data())
    def test_the_order_of_the_mappings_does_not_matter(self, context: AssignmentContext, data: st.DataObject) -> None:
        """Threads and partition numbers are sorted, topics are not."""
        topics = data.draw(st.permutations(list(context.threads)))
        shuffled = AssignmentContext(
            threads={topic: context.threads[topic] for topic in topics},
            partitions={topic: context.partitions[topic] for topic in reversed(topics)},
        )
        assert dict(self.assignor(shuffled)) == dict(self.assignor(context))

    @_any_class
    @given(context=CONTEXTS)
    def test_the_input_is_not_changed(self, context: AssignmentContext) -> None:
        before = copy.deepcopy(context)
        self.assignor(context)
        assert context == before

    @_few
    @given(groups=st.lists(GROUPS, min_size=8, max_size=8), hash_seed=st.integers(1, 1000))
    def test_another_process_computes_the_same(self, groups: list[GroupSnapshot], hash_seed: int) -> None:
        """`hash()` of text and the order of sets differ between the processes of a group."""
        contexts = [each.context() for group in groups for each in (group, *_each_without_one(group))]
        elsewhere = assign_elsewhere(self.assignor, contexts, hash_seed)
        assert elsewhere == [dict(self.assignor(context)) for context in contexts]


def _each_without_one(group: GroupSnapshot) -> list[GroupSnapshot]:
    """The groups that remain when one member leaves."""
    left = [{name: each for name, each in group.members.items() if name != leaver} for leaver in group.members]
    return [msgspec.structs.replace(group, members=members) for members in left]
