"""Streaming queries in a simulated cluster: each record is in one batch, whatever happens to drivers, brokers and logs.

`servers/test_group_reader.py` has real servers, `spark/test_chaos_source.py` a real Spark.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from kzconsumer.errors import ConfigError, OffsetLostError
from kzconsumer.model import TopicPartition
from tests.support.extent import seeds
from tests.support.simulated.blocking import Killed
from tests.support.simulated.group import SimulatedGroup, simulated_group
from tests.support.simulated.member import GROUP
from tests.support.simulated.query import OPTIONS, Programs, Query, programs_in

FIRST, SECOND = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.fixture(autouse=True)
def own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where readers of one driver are registered."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def assert_all_once(query: Query, group: SimulatedGroup) -> None:
    """The sink has each record once and in order, and the group's offsets are the ends of the logs."""
    for partition, log in group.logs.logs.items():
        assert query.rows(partition) == [(offset, log.key) for offset in range(log.end)], partition
        assert (query.stored(partition) or 0) == log.end
        assert group.ensemble.tree.data(group.paths.owner(partition)) is None


def all_committed(query: Query, group: SimulatedGroup, after: float = 0.0) -> Callable[[], bool]:
    """Whether all is committed that was produced, up to that time at least."""
    until = max(after, group.world.now) + 300

    def is_over() -> bool:
        assert group.world.now < until, "does not come to an end"
        ends = {partition: log.end for partition, log in group.logs.logs.items()}
        return group.world.now > after and all((query.stored(each) or 0) == end for each, end in ends.items())

    return is_over


@pytest.mark.long
@pytest.mark.parametrize("seed", seeds(4, 2000))
def test_each_record_is_in_one_batch(seed: int) -> None:
    """Also if drivers are killed or stopped at any moment, connections break, and leaders move."""
    chance = random.Random(seed)
    most = chance.choice((7, 30, 1000))
    options = OPTIONS | {
        "maxRecordsPerBatch": str(most),
        "minRecordsPerBatch": str(chance.randint(1, most)),
        "maxTriggerDelay": chance.choice(("100ms", "3s")),
        **({"minPartitions": str(chance.randint(1, 5))} if chance.random() < 0.5 else {}),
    }
    with simulated_group(seed, brokers=2) as group, programs_in(group) as programs:
        group.logs.grow("t", chance.randint(1, 4))
        query, world = Query(programs, chance), group.world
        until = world.now + chance.uniform(3, 10)
        world.at(until, group.logs.stop)
        for _ in range(chance.randint(0, 6)):
            world.at(chance.uniform(world.now, until), partial(disturb, group, programs, chance))

        is_over, ended = all_committed(query, group, until), False
        while not ended:
            program = programs.start()
            if world.now < until and chance.random() < 0.7:
                world.after(chance.uniform(0, 15), chance.choice((program.kill, partial(stop, programs))))
            with suppress(Killed):
                if world.now > until and chance.random() < 0.3:
                    query.run(options, available_now=True)
                else:
                    query.run(options, is_over)
                ended = is_over()
        programs.check()
        assert_all_once(query, group)
        assert query.committed == len(query.batches) == len(query.planned)
        assert max(map(len, query.batches), default=0) <= most
        if (tasks := options.get("minPartitions")) is not None:
            parts = [len({row[0] for row in batch}) for batch in query.batches]
            assert all(found >= min(int(tasks), count) for found, count in zip(query.tasks, parts, strict=True))


def disturb(group: SimulatedGroup, programs: Programs, chance: random.Random) -> None:
    match chance.randrange(3):
        case 0:
            moved = chance.choice(group.logs.partitions)
            group.logs.lead(moved, chance.choice(group.logs.brokers))
        case 1:
            for process in programs.present.processes:
                group.network.cut(process, arrives=chance.random() < 0.5)
        case 2 if not programs.present.killed:
            for process in programs.present.processes:
                process.frozen = True
            group.world.after(chance.choice((0.5, 10.0)), partial(thaw, programs, len(programs.started)))


def thaw(programs: Programs, started: int) -> None:
    program = programs.started[started - 1]
    for process in program.processes:
        process.frozen = program.killed


def stop(programs: Programs) -> None:
    if programs.on_term:
        programs.on_term[-1]()


@contextmanager
def planned_batch(tmp_path: Path, reset: str = "smallest") -> Iterator[tuple[SimulatedGroup, Query, dict[str, str]]]:
    """A driver was killed when its first batch was in the checkpoint: 40 records of each of two partitions."""
    file = tmp_path / "group.toml"
    file.write_text(
        f'zookeeper.connect = "{OPTIONS["zookeeper.connect"]}"\ngroup.id = "{GROUP}"\nsubscription.topics.t = 1\n'
        f'offsets.reset = "{reset}"\nbatch.max_time = "1s"\nfetch.request_timeout = "5s"\n'
    )
    options = {"config": str(file)}
    with simulated_group(1, brokers=2) as group, programs_in(group) as programs:
        group.logs.stop()
        group.logs.grow("t", 2)
        group.logs.burst(40)
        for partition in group.logs.partitions:
            group.ensemble.make(group.paths.offset(partition), b"0")
        query = Query(programs)
        assert query.plan(query.reader(options))
        programs.present.kill()
        programs.start()
        yield group, query, options


def lost(group: SimulatedGroup) -> list[tuple[int, int, int, str]]:
    """What was logged."""
    found = [each for each in group.events if each["event"] == "records of a planned range are lost"]
    return [(each["partition"], each["first"], each["until"], each["reason"]) for each in found]


def test_a_batch_of_the_checkpoint_whose_log_has_lost_its_beginning(tmp_path: Path) -> None:
    with planned_batch(tmp_path) as (group, query, options):
        group.logs.retain(FIRST, 25)
        query.run(options)
        assert [offset for offset, _ in query.rows(FIRST)] == [*range(25, 40)]
        assert [offset for offset, _ in query.rows(SECOND)] == [*range(40)]
        assert lost(group) == [(0, 0, 25, "retention has removed them from the log")]
    with planned_batch(tmp_path, reset="fail") as (group, query, options):
        group.logs.retain(FIRST, 25)
        with pytest.raises(OffsetLostError, match=r"^t-0\[0..25\) is planned and not committed, and retention"):
            query.run(options)


def test_a_batch_of_the_checkpoint_whose_topic_was_created_again(tmp_path: Path) -> None:
    with planned_batch(tmp_path) as (group, query, options):
        group.broker_faults.recreate("t", 2, 1.0)
        group.logs.burst(7)
        query.run(options, all_committed(query, group))
        reason = "topic t was deleted and created again after its ranges were planned"
        assert sorted(lost(group)) == [(number, 0, 40, reason) for number in range(2)]
        assert query.batches[0] == []
        assert_all_once(query, group)


def test_a_batch_of_the_checkpoint_is_not_read_from_a_log_that_was_cut_off_and_has_grown_again(tmp_path: Path) -> None:
    with planned_batch(tmp_path) as (group, query, options):
        group.logs.cut_off(SECOND, 20)
        group.logs.burst(60)
        with pytest.raises(OffsetLostError, match=r"^t-1.* use another checkpoint$"):
            query.run(options)
        assert query.batches == []


def test_a_batch_of_the_checkpoint_waits_for_its_leaders(tmp_path: Path) -> None:
    with planned_batch(tmp_path) as (group, query, options):
        group.logs.lead(FIRST, -1)
        group.world.after(30.0, lambda: group.logs.lead(FIRST, 1))
        query.run(options, all_committed(query, group))
        events = {each["event"] for each in group.events}
        assert "batch of the checkpoint waits for leaders" in events
        assert "sink starting" not in events, "the query has a sink of its own"
        assert_all_once(query, group)


def test_a_listener_has_the_offsets_committed_at_once(tmp_path: Path) -> None:
    with simulated_group(1) as group, programs_in(group) as programs:
        group.logs.stop()
        group.logs.grow("t", 1)
        group.logs.burst(40)
        query = Query(programs)
        reader = query.reader(OPTIONS | {"maxTriggerDelay": "1s"})
        assert query.plan(reader)
        query.execute(reader)
        programs.sleep(5.0)
        assert not query.stored(FIRST)
        programs.announce(query.planned[0])
        programs.sleep(5.0)
        assert query.stored(FIRST) == 40
        assert list(tmp_path.rglob("readers-*"))
        reader.stop()
        assert not list(tmp_path.rglob("readers-*")), "another query may read the topic now"


def test_a_trigger_that_is_not_supported() -> None:
    with simulated_group(1) as group, programs_in(group) as programs:
        reader = Query(programs).reader(OPTIONS)
        with pytest.raises(ConfigError, match="availableNow"):
            reader.latestOffset(reader.initialOffset(), ReadAllAvailable())


def test_the_first_call_waits_for_a_batch_as_long_as_one_takes() -> None:
    """After the member has joined; that it waits for 15 s. Then a call lasts half a second."""
    for joins, least, most in ((True, 1.5, 5.0), (False, 15.0, 16.0)):
        with simulated_group(1) as group, programs_in(group) as programs:
            group.logs.stop()
            group.logs.grow("t", 1)
            if not joins:
                group.ensemble.make(group.paths.ids)
                group.poison(60.0)
            query = Query(programs)
            reader = query.reader(OPTIONS | {"maxTriggerDelay": "1s"})
            began = group.world.now
            assert not query.plan(reader)
            assert least <= group.world.now - began < most
            began = group.world.now
            assert not query.plan(reader)
            assert 0.5 <= group.world.now - began < 0.6
            reader.stop()
