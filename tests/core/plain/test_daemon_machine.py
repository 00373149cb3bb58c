"""Daemons in a simulated group (tests/support/simulated), with the schedules that hypothesis always begins with."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import Phase, settings
from msgspec import structs

from kzconsumer.errors import SinkError
from kzconsumer.model import TopicPartition
from kzconsumer.registry import paths
from kzconsumer.service.daemon import EXIT_UNFINISHED
from kzconsumer.sinks.builtin import CallableSink
from kzconsumer.sinks.interface import SinkContext
from kzconsumer.zookeeper.operations import Check, SetData
from tests.support.extent import extent
from tests.support.simulated.daemon_machine import LIVE, SLOW, DaemonMachine
from tests.support.simulated.daemons import SHORTENED, simulated_daemons
from tests.support.simulated.lost_replies import Loss
from tests.support.simulated.scene import SESSION_TIMEOUT, Scene

TRUNCATED = "log truncated below the consumed offset"

DaemonMachine.TestCase.settings = settings(
    max_examples=extent(6, 1000, quick=3),
    stateful_step_count=12,
    phases=[phase for phase in Phase if phase is not Phase.explain],
)

TestDaemonMachine: Any = pytest.mark.timeout(7200)(DaemonMachine.TestCase)


def test_a_daemon_that_is_stopped_while_it_claims_ends_in_order() -> None:
    """Fetching ends first; the rebalancer that still claims partitions of a run must not start any."""
    with simulated_daemons(1, Scene()) as daemons:
        daemons.group.logs.grow("t", 2)
        daemons.group.logs.burst(300)
        daemon = daemons.start(Scene(), SLOW, topics={"t": 1}, stop_at="end")
        daemons.world.pass_time(3.0)
        daemons.group.logs.grow("t", 1)
        daemons.world.pass_time(0.4)
        daemons.stop(daemon)
        daemons.group.logs.grow("t", 1)
        daemons.world.pass_time(20.0)
        daemons.check()
        assert daemon.task.result() == EXIT_UNFINISHED


@pytest.mark.parametrize(("wait", "records"), [(0.0, 300), (0.001, 300), (0.0, 0)])
@pytest.mark.parametrize("frozen", [2 * SESSION_TIMEOUT, 1.5 * SESSION_TIMEOUT])
def test_a_daemon_that_is_suspended_as_it_stops_reports_what_was_not_committed(
    frozen: float, wait: float, records: int
) -> None:
    """Its partitions are lost when it goes on, before the member leaves; the deadline of the stop may have passed."""
    with simulated_daemons(1, Scene()) as daemons:
        daemons.group.logs.grow("t", 2)
        if not records:
            daemons.group.logs.stop()
        daemon = daemons.start(Scene(), SLOW, topics={"t": 1})
        daemons.world.pass_time(3.0)
        daemons.group.logs.burst(records)
        daemons.world.pass_time(0.4)
        daemons.stop(daemon)
        daemons.world.pass_time(wait)
        daemon.process.frozen = True
        daemons.world.pass_time(frozen)
        daemon.process.frozen = False
        daemons.world.pass_time(20.0)
        failed = [each for each in daemons.group.events if each["event"].startswith("final commit failed")]
        assert (len(failed), daemon.task.result()) == ((1, 1) if records else (0, 0))


def test_a_daemon_ends_with_the_error_of_its_sink() -> None:
    with simulated_daemons(1, Scene()) as daemons:
        daemons.group.logs.grow("t", 2)
        daemon = daemons.start(Scene(), 0.1, topics={"t": 1})
        daemons.world.pass_time(3.0)
        daemon.refuses = True
        daemons.world.pass_time(20.0)
        error = daemon.task.exception()
        assert isinstance(error, SinkError)
        assert "raised OSError: no space left" in str(error)
        assert str(error.__cause__) == "no space left"
        assert daemon.manager.received[-1][1] == {"STOPPING": 1, "STATUS": f"failed: {error}"}


@pytest.mark.parametrize("zookeeper_answers", [True, False])
@pytest.mark.parametrize(("after", "at_once"), [(0.1, False), (0.3, True), (1.5, True)])
def test_a_second_signal_ends_a_daemon_at_once(after: float, at_once: bool, zookeeper_answers: bool) -> None:
    """Unless it comes with the first one, as from a wrapper and the terminal. A batch is being written."""
    with simulated_daemons(1, Scene()) as daemons:
        daemons.group.logs.grow("t", 2)
        daemon = daemons.start(Scene(), 8.0, topics={"t": 1})
        daemons.world.pass_time(4.0)
        for server in daemons.group.ensemble.servers:
            server.set_cut_off(not zookeeper_answers)
        daemons.stop(daemon)
        daemons.world.pass_time(after)
        daemons.stop(daemon)
        assert bool(daemons.world.pass_time(1.0, daemon.task.done)) == at_once
        for server in daemons.group.ensemble.servers:
            server.set_cut_off(False)
        daemons.world.pass_time(20.0)
        assert daemon.task.done()
        stopping = [each for each in daemons.group.events if each["event"].startswith("stopping")]
        assert [each["event"] for each in stopping] == ["stopping", "stopping at once"][: 1 + at_once]
        assert {each.get("group") for each in stopping} == {"g"}, "who looks for the lines of a group finds these"


def test_partitions_that_wait_for_a_dead_letter_do_not_show_a_slow_sink() -> None:
    with simulated_daemons(1, Scene()) as daemons:
        daemons.group.logs.grow("t", 2)
        daemon = daemons.start(Scene(), 8.0, topics={"t": 1})
        daemons.world.pass_time(4.0)
        assert daemon.observer is not None
        for waiting, shown in ((0, "sink slow"), (1, "dead letter not written")):
            daemon.observer.sessions.rejects.waiting = waiting
            assert {each.hindrance for each in daemon.observer.report().partitions} == {shown}
        daemons.stop(daemon)
        daemons.world.pass_time(20.0)


def test_a_signal_to_a_daemon_that_is_about_to_start_again_ends_it() -> None:
    with simulated_daemons(1, Scene()) as daemons:
        daemons.group.logs.grow("t", 2)
        daemon = daemons.start(Scene(), 4.0, topics={"t": 1})
        daemons.world.pass_time(5.0)
        daemons.reload(daemon, "subscription", topics={"t": 1, "u": 1})
        daemons.world.pass_time(0.5)
        assert not any("STOPPING" in fields for _, fields in daemon.manager.received)
        daemons.stop(daemon)
        daemons.world.pass_time(0.1)
        assert "STOPPING" in daemon.manager.received[-1][1]
        daemons.world.pass_time(20.0)
        assert daemon.task.result() == 0
        assert len(daemon.manager.when("READY")) == 1


def test_an_attribute_of_a_sink_that_is_misspelt_is_logged_and_the_daemon_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CallableSink, "due_record", 5, raising=False)
    with simulated_daemons(1, Scene()) as daemons:
        daemons.group.logs.grow("t", 2)
        daemons.group.logs.burst(300)
        daemon = daemons.start(Scene(), SLOW, topics={"t": 1}, stop_at="end")
        daemons.world.pass_time(60.0)
        found = [each for each in daemons.group.events if each["event"] == "sink attribute has no effect"]
        assert [(each["attribute"], each["meant"]) for each in found] == [("due_record", "due_records")]
        assert daemon.task.result() == 0


def test_a_sink_is_told_the_consumer_id_of_its_member(monkeypatch: pytest.MonkeyPatch) -> None:
    made, members = CallableSink.__init__, list[str]()

    def noted(sink: CallableSink, options: Mapping[str, object], context: SinkContext) -> None:
        members.append(context.member)
        made(sink, options, context)

    monkeypatch.setattr(CallableSink, "__init__", noted)
    with simulated_daemons(1, Scene()) as daemons:
        daemons.group.logs.grow("t", 2)
        for _ in range(2):
            daemons.start(Scene(), 0.0, topics={"t": 1})
        daemons.world.pass_time(3.0)
        nodes = daemons.group.ensemble.tree.nodes
        assert len(members) == 2
        assert all(daemons.group.paths.member(each) in nodes for each in members)


def test_what_a_daemon_says_is_true_when_nothing_happens() -> None:
    """Also of a partition that is paused, of which it fetches nothing, and of a topic that does not exist.

    Its service manager hears of it.
    """
    with simulated_daemons(1, Scene(brokers=2)) as daemons:
        daemons.group.logs.grow("t", 3)
        daemons.group.logs.burst(3)
        daemons.world.pass_time(9.0)
        daemon = daemons.start(Scene(brokers=2), 0.3, topics={"t": 1, "u": 1}, paused=["t:0"])
        daemons.world.pass_time(4.0)
        daemons.reload(daemon, "offsets", commit_interval=20.0)
        daemons.world.pass_time(1.0)
        daemons.group.logs.burst(300)
        daemons.group.logs.stop()
        for _ in range(6):
            daemons.world.pass_time(15.0)
            daemons.check_figures()
        behind = daemons.group.logs.end(TopicPartition("t", 0))
        *_, progress = [each for each in daemons.group.events if each["event"] == "progress"]
        assert (progress["owned"], progress["behind"], progress["batch"]["stage"]) == (3, behind, "done")
        daemons.stop(daemon)
        daemons.world.pass_time(5.0)
        daemons.check()
        assert daemon.task.result() == 0


def test_a_bounded_run_is_written_in_batches_that_are_due() -> None:
    """Its records come over several seconds: each batch has what came in one."""
    scene = Scene(fetch=(("rate_limit", "20kB"), ("max_bytes", "4kB")))
    with simulated_daemons(1, scene) as daemons:
        daemons.group.logs.grow("t", 2)
        for _ in range(20):
            daemons.group.logs.burst(300)
        daemons.group.logs.grow_log(TopicPartition("t", 1), 3000)
        daemon = daemons.start(scene, 0.3, topics={"t": 1}, stop_at="end")
        daemons.world.pass_time(60.0, lambda: daemon.task.done())
        daemons.check()
        assert daemon.task.result() == 0


@pytest.mark.parametrize("wait", [0.0, 0.01, 0.0175, 0.0185, 0.02, 0.1])
def test_a_reload_while_a_daemon_joins_again_is_not_lost(wait: float) -> None:
    """One daemon ends while it reads the settings: the next one does it."""
    with simulated_daemons(1, Scene()) as daemons:
        daemons.group.logs.grow("t", 2)
        daemons.group.logs.grow("tt", 2)
        daemon = daemons.start(Scene(), 0.0, topics={"t": 1})
        daemons.world.pass_time(3.0)
        daemons.reload(daemon, "subscription", topics={"t": 1, "tt": 1})
        daemons.world.pass_time(wait)
        daemons.reload(daemon, "batch", max_records=77)
        daemons.world.pass_time(5.0)
        applied = [key for each in daemons.group.events for key in each.get("applied", ())]
        assert sorted(applied) == ["batch.max_records", "subscription.topics"]
        daemons.stop(daemon)
        daemons.world.pass_time(20.0)
        daemons.check()
        assert daemon.task.result() == 0


def test_every_change_that_a_reload_applies_is_in_force() -> None:
    with simulated_daemons(1, Scene()) as daemons:
        daemons.group.logs.grow("t", 2)
        daemon = daemons.start(Scene(), 0.0, topics={"t": 1})
        daemons.world.pass_time(3.0)
        for section, changed in LIVE:
            daemons.reload(daemon, section, **changed)
            daemons.world.pass_time(1.0)
            daemons.check_reloaded(daemon)
            daemons.check()


def test_a_reload_that_was_asked_for_before_the_event_loop_ran_is_done() -> None:
    with simulated_daemons(1, Scene()) as daemons:
        daemons.group.logs.grow("t", 1)
        daemon = daemons.start(Scene(), 0.0, early=[signal.SIGHUP], topics={"t": 1})
        batch = structs.replace(daemon.settings.batch, max_records=77)
        daemon.settings = structs.replace(daemon.settings, batch=batch)
        daemons.world.pass_time(3.0)
        (reloaded,) = [each for each in daemons.group.events if each["event"] == "configuration reloaded"]
        assert reloaded["applied"] == ["batch.max_records"]


def test_a_daemon_that_stops_ends_a_write_with_the_lease() -> None:
    """The write would end within the deadline of the stop. But another member may own the partitions by then."""
    with simulated_daemons(1, Scene()) as daemons:
        daemons.group.logs.grow("t", 2)
        daemons.group.logs.burst(300)
        daemons.group.logs.stop()
        daemon = daemons.start(Scene(), SLOW, topics={"t": 1})
        daemons.world.pass_time(2.0)
        daemons.stop(daemon)
        daemons.group.network.set_silent(daemon.process, True)
        daemons.world.pass_time(20.0)
        daemons.check()
        assert daemon.task.done()
        assert [daemons.done(partition) for partition in daemons.group.logs.partitions] == [0, 0]


def test_two_progress_lines_in_one_moment_end_no_daemon() -> None:
    """A reload has one logged at once, at the time of another. No time has passed then, so there is no rate."""
    with simulated_daemons(0, Scene(brokers=2)) as daemons:
        daemons.group.logs.grow("t", 1)
        daemon = daemons.start(Scene(brokers=2), 0.0, topics={"t": 1})
        for change in ("log", {"progress_interval": 1.0}), ("batch", {"max_records": 1}), ("batch", {"max_records": 2}):
            daemons.reload(daemon, change[0], **change[1])
            daemons.world.pass_time(4.0)
        daemons.check()


def test_a_run_whose_position_moves_back_to_before_where_it_began_has_done_nothing() -> None:
    """Not less than that: what is shown counts from the lowest position that it has had."""
    with simulated_daemons(1, Scene(brokers=2)) as daemons:
        daemons.group.logs.grow("t", 1)
        daemons.group.logs.burst(300)
        daemons.group.logs.stop()
        daemons.group.ensemble.make(daemons.group.paths.offset(TopicPartition("t", 0)), b"200")
        daemon = daemons.start(Scene(brokers=2), 0.0, topics={"t": 1}, stop_at="end", paused=["t:0"])
        daemons.world.pass_time(4.0)
        assert daemon.progress == (0, 100)
        daemons.group.ensemble.operate(SetData(daemons.group.paths.offset(TopicPartition("t", 0)), b"50", -1))
        daemons.faults.expire(daemon)
        daemons.world.pass_time(4.0)
        daemons.check()
        assert daemon.progress == (0, 250)


def test_a_daemon_whose_session_expires_while_it_waits_for_the_first_broker_begins_all_the_same() -> None:
    """No event of an expired session comes: it has to ask again."""
    with simulated_daemons(1, Scene(brokers=2)) as daemons:
        daemons.group.logs.grow("t", 1)
        daemons.group.take_brokers(20.0)
        daemon = daemons.start(Scene(brokers=2), 0.0, topics={"t": 1})
        daemons.world.pass_time(2.0)
        with daemons.group.network.silence(daemon.process):
            daemons.world.pass_time(2 * SESSION_TIMEOUT)
        daemons.come_to_an_end(45.0)


def test_a_daemon_that_reads_other_topics_goes_on_though_its_last_commit_failed() -> None:
    """ZooKeeper is away as it reloads its settings. Nobody has asked it to end, and nothing would start it again."""
    with simulated_daemons(1, Scene(brokers=2)) as daemons:
        daemons.group.logs.grow("t", 1)
        daemons.group.logs.burst(300)
        daemon = daemons.start(Scene(brokers=2), 0.3, topics={"t": 1})
        daemons.world.pass_time(0.9)
        with daemons.group.network.silence(daemon.process):
            daemons.world.pass_time(7.0)
            daemons.reload(daemon, "subscription", topics={"t": 2})
            daemons.world.pass_time(10.0)
            assert "final commit failed" in {event["event"].partition(":")[0] for event in daemons.group.events}
        daemons.come_to_an_end(45.0)


@pytest.mark.parametrize("unanswered", [False, True])
def test_a_run_that_is_shortened_to_before_a_paused_partition_shows_no_negative_progress(unanswered: bool) -> None:
    """Its log was cut off, and nobody fetches it, so its position stays behind the end of the run. That is logged once,
    also if the write that moves the end is not answered."""
    with simulated_daemons(1, Scene(brokers=2)) as daemons:
        daemons.group.logs.grow("t", 1)
        daemons.group.logs.burst(300)
        daemons.group.logs.stop()
        before = daemons.start(Scene(brokers=2), 0.0, topics={"t": 1})
        daemons.world.pass_time(4.0)
        daemons.stop(before)
        daemons.world.pass_time(2.0)
        daemons.group.logs.burst(100)
        daemon = daemons.start(Scene(brokers=2), 0.0, topics={"t": 1}, stop_at="end", paused=["t:0"])
        daemons.world.pass_time(4.0)
        assert daemon.progress == (0, 100)
        if unanswered:
            daemons.faults.lose_a_reply(daemon, Loss(True, "other"))
        daemons.cut_off(TopicPartition("t", 0), 350)
        daemons.world.pass_time(20.0)
        assert unanswered or daemon.progress == (0, 0)
        events = [event["event"] for event in daemons.group.events]
        assert events.count(SHORTENED) == 1
        assert ("connection lost" in events) is unanswered
        daemons.come_to_an_end(45.0)
        assert daemon.task.result() == 0


def test_a_log_that_is_cut_off_while_a_planned_range_is_read_again_stops_no_daemon() -> None:
    """`[offsets] truncated` is "continue": the range is given up, in a new epoch."""
    scene = Scene(brokers=2, record_bytes=100, fetch=(("rate_limit", "8kB"), ("max_bytes", "4kB")))
    with simulated_daemons(1, scene, replayable=True) as daemons:
        partition = TopicPartition("t", 0)
        daemons.group.logs.grow("t", 1)
        daemons.group.logs.stop()
        first = daemons.start(scene, 60.0, topics={"t": 1})
        daemons.world.pass_time(3.0)
        daemons.reload(first, "batch", max_time=6.0)
        daemons.world.pass_time(1.0)
        daemons.group.logs.burst(600)
        daemons.world.pass_time(8.0)
        daemons.faults.kill(first)
        daemons.world.pass_time(SESSION_TIMEOUT + 1)
        daemons.start(scene, 0.0, topics={"t": 1})
        daemons.world.pass_time(3.0)
        daemons.cut_off(partition, 599)
        daemons.group.logs.burst(600)
        daemons.world.pass_time(10.0)
        assert "partition lost" in {event["event"] for event in daemons.group.events}
        daemons.come_to_an_end(60.0)


def test_a_log_that_was_cut_off_before_a_run_of_which_nothing_is_left_to_read_is_reported() -> None:
    """Nobody fetches from there, so the run itself has to find out."""
    with simulated_daemons(1, Scene()) as daemons:
        daemons.group.logs.grow("t", 2)
        daemons.group.logs.burst(300)
        daemons.group.logs.stop()
        for run in ("monday", "tuesday"):
            daemon = daemons.start(Scene(), 0.0, topics={"t": 1}, stop_at="end", run=run)
            assert daemons.world.pass_time(60.0, daemon.task.done)
            assert daemon.task.result() == 0
            found = [(each["partition"], each["until"]) for each in daemons.group.events if each["event"] == TRUNCATED]
            assert found == ([] if run == "monday" else [(1, 300)])
            daemons.cut_off(TopicPartition("t", 1), 200)


def test_a_daemon_whose_run_is_over_starts_no_sink_and_writes_nothing() -> None:
    """The first of two that work on it, the one that sees its end, and one that comes later."""
    with simulated_daemons(1, Scene()) as daemons:
        daemons.group.logs.grow("t", 2)
        daemons.group.logs.burst(300)
        wanted: dict[str, Any] = {"topics": {"t": 1}, "stop_at": "end", "run": "monday"}
        both = [daemons.start(Scene(), pace, **wanted) for pace in (0.0, 0.3)]
        assert daemons.world.pass_time(60.0, lambda: all(each.task.done() for each in both))
        before = len(daemons.group.events), len(daemons.group.ensemble.log)
        late = daemons.start(Scene(), 0.0, **wanted)
        assert daemons.world.pass_time(10.0, late.task.done)
        daemons.check()
        assert [each.task.result() for each in (*both, late)] == [0, 0, 0]
        events = {each["event"] for each in daemons.group.events[before[0] :]}
        assert "run is finished already, the sink is not started" in events
        assert "sink starting" not in events
        operations = [each for done in daemons.group.ensemble.log[before[1] :] for each in done.operations]
        assert [each for each in operations if not isinstance(each, Check)] == []


@pytest.mark.parametrize(
    ("read", "produced", "pace", "elected"),
    [(0, 100, 0.0, 0), (300, 700, 2.0, 0), (300, 50, 0.0, 0), (300, 700, 0.0, 1)],
    ids=["nothing was read", "a longer log, during a write", "a shorter log", "a log with lower leader epochs"],
)
def test_records_of_a_topic_that_was_created_again_unseen_are_written_once(
    read: int, produced: int, pace: float, elected: int
) -> None:
    """No event says that it is another one, and a log that was truncated would end the daemon."""
    scene = Scene(brokers=2)
    with simulated_daemons(1, scene, replayable=True) as daemons:
        daemons.group.logs.grow("t", 2)
        daemons.group.logs.stop()
        for log in daemons.group.logs.logs.values():
            log.epoch += elected
        daemons.group.logs.burst(read)
        daemon = daemons.start(scene, pace, truncated="fail", topics={"t": 1})
        daemons.world.pass_time(8.0)
        if pace:
            daemons.group.logs.burst(10)
            daemons.world.pass_time(1.5)  # it is writing these
        daemons.recreate("t", 2, unseen=True)
        daemons.group.logs.burst(produced)
        daemons.come_to_an_end(60.0)
        lost = [each["reason"] for each in daemons.group.events if each["event"] == "partition lost"]
        assert lost == ["its topic was deleted and created again"] * 2
        assert daemon.task.result() == 0


def test_what_is_in_hand_of_a_deleted_topic_is_written() -> None:
    """Nobody else can read it any more."""
    with simulated_daemons(1, Scene(brokers=2), replayable=True) as daemons:
        partition = TopicPartition("t", 0)
        daemons.group.logs.grow("t", 1)
        daemons.group.logs.stop()
        daemons.start(Scene(brokers=2), 0.0, topics={"t": 1})
        daemons.world.pass_time(8.0)
        daemons.group.logs.burst(10)
        daemons.world.pass_time(0.2)
        incarnation = daemons.incarnation("t")
        for server in daemons.group.ensemble.servers:
            server.forget_watches(paths.topic("t"))
        daemons.group.logs.delete("t")
        daemons.world.pass_time(3.0)
        written = [each for each in daemons.destination.ranges if each.incarnation == incarnation]
        assert [(each.topic_partition, each.until) for each in written] == [(partition, 10)]
