"""Publishing into PostgreSQL without Spark: two writers of one range, suspended and dead writers, removal of stages."""

from __future__ import annotations

import multiprocessing
import os
import socket
import threading
import time
from multiprocessing.connection import Connection
from typing import Any

import msgspec
import psycopg
import pytest
from structlog.testing import capture_logs

from kzconsumer.errors import DestinationWentBackError
from kzconsumer.model import RangeIdentity
from kzconsumer_files.publication import SetAside
from kzconsumer_files.range_names import NotOurs, RangeOverlap, TargetOwner, identity_of
from kzconsumer_spark.destinations import jdbc_writer
from kzconsumer_spark.destinations.jdbc_database import STAGE
from kzconsumer_spark.destinations.jdbc_table import JdbcTable
from kzconsumer_spark.destinations.jdbc_writer import JdbcDestination
from kzconsumer_spark.ranges.batch import RANGE_PARTITION, RANGE_TOPIC, SparkBatch
from kzconsumer_spark.worker_protocol.messages import BatchRange, ToJdbc
from tests.support.batch_ranges import batch_range
from tests.support.placed_records import Permitted
from tests.support.postgres import Postgres, postgres
from tests.support.processes import wait_until

OWNER = TargetOwner(cluster="c", group="g")
SKIPPED = "rows skipped, the table has their unique key"


@pytest.fixture
def to(database: Postgres, monkeypatch: pytest.MonkeyPatch, unique: str) -> ToJdbc:
    monkeypatch.setenv("DATABASE_PASSWORD", database.password)
    database.query(f'CREATE TABLE "{unique}" (n int, writer text)')
    table = JdbcTable(ToJdbc(url=database.url, table=unique, user=database.user, password_env="DATABASE_PASSWORD"))
    table.mark(OWNER)
    return table.to


def planned(first: int, partition: int = 0, records: int = 3) -> BatchRange:
    return batch_range("t", partition, first, first + 3, incarnation=-5, records=records)


def stages(database: Postgres) -> int:
    return len(database.query(f"SELECT 1 FROM pg_tables WHERE tablename LIKE '{STAGE}%%'"))


def test_an_id_belongs_to_one_group_per_table(to: ToJdbc) -> None:
    def claimed(output: ToJdbc, owner: TargetOwner) -> str:
        table = JdbcTable(output)
        table.mark(owner)
        return table.fingerprint

    same = claimed(to, OWNER)
    assert same == claimed(to, OWNER)
    others = {
        claimed(to, TargetOwner(cluster="c", group="h")),
        claimed(msgspec.structs.replace(to, table="other"), OWNER),
    }
    assert len(others - {same}) == 2


def test_a_cluster_that_gets_an_id_keeps_its_rows(database: Postgres, to: ToJdbc) -> None:
    """By an upgrade of its brokers from before 0.10.1, or with another `[zookeeper] connect` there."""
    before, after, third = (
        TargetOwner(cluster=each, group="old") for each in ("zk1:2181/kafka", "K1u165aN", "zk2:2181")
    )
    table = JdbcTable(to)
    table.mark(before)
    written = planned(0)
    assert put(table.to, written) == 1
    for each in third, after:
        with pytest.raises(NotOurs, match=r"had no id before Kafka 0.10.1, UPDATE .* WHERE id = '.*'$") as refused:
            JdbcTable(to).mark(each)
    database.query(str(refused.value).partition("0.10.1, ")[2])
    table = JdbcTable(to)
    table.mark(after)
    assert table.has([identity_of(written)]) == [identity_of(written)]


def put(to: ToJdbc, part: BatchRange, *follows: BatchRange) -> int:
    """By a new connection, as the worker's."""
    table = JdbcTable(to)
    with table.connect() as connection:
        stage = table.stages.own(connection)
        fill(table, connection, stage, {part: 3}, "w")
        before = [identity_of(each) for each in follows]
        done = table.publish(connection, {part: 3}, {}, stage, ["n", "writer"], lambda: None, before)
        table.stages.drop(connection, stage)
    return done


def test_a_connection_gives_up_a_host_that_has_vanished(to: ToJdbc) -> None:
    """Whether or not it has sent something that is not acknowledged."""
    with JdbcTable(to).connect() as connection, socket.socket(fileno=os.dup(connection.fileno())) as tcp:
        assert tcp.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 30_000
        assert tcp.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert tcp.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 10


def test_rows_that_are_skipped_for_their_unique_key_are_logged(to: ToJdbc, database: Postgres) -> None:
    """As those of a second cluster, or of a topic that was created again, if offsets are the key."""
    database.query(f'CREATE UNIQUE INDEX ON "{to.table}" (n)')
    keyed = JdbcTable(msgspec.structs.replace(to, unique_key=("n",)))
    keyed.mark(TargetOwner(cluster="other", group="g"))
    with capture_logs() as logs:
        assert put(to, planned(0)) == put(keyed.to, planned(3)) == 1
        assert logs == []
        assert put(keyed.to, batch_range("t", 0, 1, 4, incarnation=-6)) == 1
    assert logs == [
        {"event": SKIPPED, "log_level": "info", "table": to.table, "rows": 3, "ranges": "t-0[1..4)"},
    ]


def test_a_commit_survives_a_crash_whatever_the_default_of_the_role(monkeypatch: pytest.MonkeyPatch) -> None:
    """With `synchronous_commit = off` a commit is reported before its log is written."""
    with postgres(wal_writer_delay="10s", wal_writer_flush_after="100MB") as server:
        monkeypatch.setenv("DATABASE_PASSWORD", server.password)
        server.query("ALTER ROLE tester SET synchronous_commit = off")
        server.query("CREATE TABLE theirs (n int)")
        server.query("CREATE TABLE ours (n int, writer text)")
        server.query("CHECKPOINT")
        table = JdbcTable(ToJdbc(url=server.url, table="ours", user=server.user, password_env="DATABASE_PASSWORD"))
        table.mark(OWNER)
        parts = [planned(0), planned(3), planned(6)]
        assert [put(table.to, part) for part in parts] == [1, 1, 1]
        assert table.set_aside(identity_of(planned(9)), 3)
        server.query("INSERT INTO theirs VALUES (1)")
        server.crash()
        server.start()
        assert server.query("SELECT count(*) FROM theirs") == [(0,)], "the server had nothing to lose"
        assert server.query("SELECT count(*) FROM ours") == [(9,)]
        assert len(table.has([identity_of(part) for part in parts])) == 3
        assert not table.has([identity_of(planned(9))])
        with pytest.raises(SetAside):
            put(table.to, planned(9))


def test_a_stricter_setting_is_kept(to: ToJdbc, database: Postgres) -> None:
    for default, expected in (("off", "on"), ("local", "on"), ("on", "on"), ("remote_apply", "remote_apply")):
        database.query(f"ALTER ROLE tester SET synchronous_commit = {default}")
        try:
            with JdbcTable(to).connect() as connection:
                assert connection.execute("SHOW synchronous_commit").fetchone() == (expected,)
        finally:
            database.query("ALTER ROLE tester RESET synchronous_commit")


@pytest.mark.parametrize("marks", [True, False], ids=["start", "batch"])
@pytest.mark.parametrize("partitioned", [True, False])
def test_a_table_that_a_crash_empties_is_refused(
    to: ToJdbc, database: Postgres, unique: str, partitioned: bool, marks: bool
) -> None:
    """The ledger would still have its ranges."""
    table = JdbcTable(to)
    if partitioned:
        database.query(f'DROP TABLE "{unique}"')
        database.query(f'CREATE TABLE "{unique}" (n int, writer text) PARTITION BY LIST (writer)')
        database.query(f'CREATE TABLE "{unique}-w" PARTITION OF "{unique}" FOR VALUES IN (\'w\')')
    logged = f"{unique}-w" if partitioned else unique
    table.mark(OWNER)
    database.query(f'ALTER TABLE "{logged}" SET UNLOGGED')
    with pytest.raises(NotOurs, match=f'table "{logged}" is not logged'), table.connect() as connection:
        table.mark(OWNER) if marks else table.create(connection, {"n": "int"})
    database.query(f'ALTER TABLE "{logged}" SET LOGGED')
    table.mark(OWNER)


def test_a_database_that_was_restored_takes_nothing_more(to: ToJdbc, database: Postgres, unique: str) -> None:
    """While a member is connected. Each range follows the one before, which has a row in the ledger."""
    one, two, three, four, other = planned(0), planned(3), planned(6), planned(9), planned(0, 1)
    assert put(to, one) == put(to, two, one) == put(to, other) == 1
    copy, ledger = f'"{unique}-copy"', "kzconsumer_ledger"
    database.query(f"CREATE TABLE {copy} AS TABLE {ledger}")
    assert put(to, three, two) == 1, "a copy changes nothing"
    database.query(f"WITH gone AS (DELETE FROM {ledger} RETURNING 1) SELECT count(*) FROM gone")
    database.query(f"INSERT INTO {ledger} TABLE {copy}")
    for _ in range(2):
        with pytest.raises(DestinationWentBackError, match=r"t-0: offsets 6 to 9 were written and .* missing now: "):
            put(to, four, three)
    assert put(to, planned(3, 1), other) == 1
    aside = planned(12)
    assert JdbcTable(to).set_aside(identity_of(aside), 3)
    assert put(to, planned(15), aside) == 1, "a range that was set aside counts as there"
    with pytest.raises(DestinationWentBackError, match=r"t-2: offsets 0 to 3 were .* perhaps with others"):
        put(to, planned(3, 2), planned(0, 2))
    assert database.query(f'SELECT count(*) FROM "{unique}" WHERE n >= 9 AND n < 15') == [(0,)]


def test_an_unreachable_database_is_reported_in_one_line_without_the_password(
    to: ToJdbc, database: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_PASSWORD", "not-the-secret")
    with pytest.raises(OSError, match=r"^PostgreSQL: .*password authentication failed for user \"tester\"$") as caught:
        JdbcTable(to).mark(OWNER)
    assert "not-the-secret" not in str(caught.value)
    missing = msgspec.structs.replace(to, password_env="NO_SUCH_VARIABLE")
    with pytest.raises(Exception, match="password_env: the environment has no such variable"):
        JdbcTable(missing).mark(OWNER)


_PROCESSES = multiprocessing.get_context("forkserver")


class Writer:
    """One in a process of its own: it says what it is about to do, and waits for leave."""

    def __init__(self, to: ToJdbc, name: str, ranges: int, stop: bool = False) -> None:
        _PROCESSES.set_forkserver_preload([__name__])
        self._pipe, theirs = _PROCESSES.Pipe()
        password = os.environ["DATABASE_PASSWORD"]
        self.process = _PROCESSES.Process(target=_write, args=(theirs, password, to, name, ranges, stop), daemon=True)
        self.process.start()
        theirs.close()
        assert self.said() == "ready"

    def said(self) -> object:
        assert self._pipe.poll(100)
        return self._pipe.recv()

    def go(self) -> None:
        self._pipe.send("go")

    def ended(self) -> int | None:
        """Its exit status."""
        self.process.join(100)
        self._pipe.close()
        return self.process.exitcode


def _write(pipe: Connection, password: str, to: ToJdbc, name: str, ranges: int, stop: bool) -> None:
    os.environ["DATABASE_PASSWORD"] = password
    table = JdbcTable(to)
    connection = table.connect()
    stage = table.stages.own(connection)

    def lease() -> None:
        if stop:  # everything is in the transaction, nothing is committed
            pipe.send("about to commit")
            pipe.recv()

    won = 0
    for n in range(ranges):
        # One writer goes through the partitions upwards, the other downwards; each has rows that the other has not.
        parts = [planned(3 * n, partition) for partition in ((0, 1) if name == "a" else (1, 0))]
        rows = dict.fromkeys(parts, 2 if name == "a" else 3)
        fill(table, connection, stage, rows, name)
        pipe.send("ready")
        pipe.recv()
        won += table.publish(connection, rows, {}, stage, ["n", "writer"], lease)
    pipe.send(won)


def about_to_commit(to: ToJdbc) -> Writer:
    stopped = Writer(to, "a", 1, stop=True)
    stopped.go()
    assert stopped.said() == "about to commit"
    return stopped


def fill(table: JdbcTable, connection: object, stage: str, rows: dict[BatchRange, int], writer: str) -> None:
    """Spark's part: the rows of some ranges into a stage."""
    table.stages.drop(connection, stage)  # type: ignore[arg-type]
    name = table.stages.make(connection, stage, ["n", "writer"])  # type: ignore[arg-type]
    for part, count in rows.items():
        values = [(part.first + n, writer, part.topic, part.partition) for n in range(count)]
        columns = f'n, writer, "{RANGE_TOPIC}", "{RANGE_PARTITION}"'
        with connection.cursor() as cursor:  # type: ignore[attr-defined]
            cursor.executemany(f"INSERT INTO {name} ({columns}) VALUES (%s, %s, %s, %s)", values)


def published(database: Postgres, to: ToJdbc) -> dict[int, set[tuple[str, int]]]:
    """By first offset: the writers whose rows exist, and how many of both partitions."""
    query = f'SELECT n / 3 * 3, writer, count(*) FROM "{to.table}" GROUP BY 1, 2'
    found: dict[int, set[tuple[str, int]]] = {}
    for first, name, count in database.query(query):
        found.setdefault(first, set()).add((name, count))
    return found


def test_readers_see_the_rows_of_one_of_two_writers(database: Postgres, to: ToJdbc) -> None:
    ranges = int(os.environ.get("KZCONSUMER_RACES", "25"))
    racers = [Writer(to, name, ranges) for name in "ab"]
    won = [0, 0]
    for n in range(ranges):
        first, second = racers[:: 1 if n % 2 else -1]
        first.go()
        time.sleep(n // 2 % 5 / 1000)  # with some of the leads, the faster program does not win each race
        second.go()
        won = [each if isinstance(each := racer.said(), int) else 0 for racer in racers]
    assert [racer.ended() for racer in racers] == [0, 0]
    assert sum(won) == 2 * ranges
    assert min(won) > 0, "they never met"
    ledger = database.query(
        "SELECT first, sum(records_out) FROM kzconsumer_ledger WHERE owner = %s GROUP BY 1", [to.owner_id]
    )
    assert len(ledger) == ranges
    seen = published(database, to)
    for first, rows in ledger:
        assert sum(count for _, count in seen[first]) == rows, seen[first]


@pytest.mark.parametrize("fate", ["killed", "frozen"])
def test_a_writer_that_never_commits_delays_others_only_briefly(database: Postgres, to: ToJdbc, fate: str) -> None:
    zombie = about_to_commit(to)
    assert published(database, to) == {}
    table = JdbcTable(to)
    identities = [RangeIdentity("t", partition, -5, 0, 0, 3) for partition in (0, 1)]
    assert table.has(identities) == []
    if fate == "killed":
        zombie.process.kill()
        zombie.ended()
    with table.connect() as connection:
        stage = table.stages.own(connection)
        if fate == "killed":
            # The server notices a moment later that its client is gone.
            deadline = time.monotonic() + 30
            while database.query("SELECT 1 FROM pg_stat_activity WHERE state = 'idle in transaction'"):
                assert time.monotonic() < deadline
                time.sleep(0.05)
        rows = dict.fromkeys([planned(0), planned(0, 1)], 3)
        fill(table, connection, stage, rows, "b")
        # Waits until the server ends the frozen writer's transaction.
        assert table.publish(connection, rows, {}, stage, ["n", "writer"], lambda: None) == 2
    assert published(database, to) == {0: {("b", 6)}}
    assert table.has(identities) == identities
    if fate == "frozen":
        zombie.go()
        assert zombie.ended() == 1
        assert published(database, to) == {0: {("b", 6)}}
    with table.connect() as connection:
        table.stages.own(connection)
    assert stages(database) == 0


def test_no_other_server_is_asked_within_the_transaction(
    database: Postgres, to: ToJdbc, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ZooKeeper's answer may take longer than the transaction may be idle."""
    calls: list[tuple[str, int]] = []

    class Asked(Permitted):
        def require_now(self) -> None:
            calls.append(("now", transactions()))

        def require_whole(self) -> None:
            calls.append(("whole", transactions()))

    def transactions() -> int:
        return len(database.query("SELECT 1 FROM pg_stat_activity WHERE state = 'idle in transaction'"))

    monkeypatch.setattr(jdbc_writer, "_require_driver", lambda _: None)
    nothing: Any = None
    destination = JdbcDestination(nothing, to, Asked())
    assert destination.write(SparkBatch(1, nothing, [planned(0, records=0)])) == (0, 1, 0)
    destination.close()
    assert calls == [("whole", 0), ("now", 1)]


def test_the_stage_of_a_living_writer_is_kept(database: Postgres, to: ToJdbc) -> None:
    alive = about_to_commit(to)
    table = JdbcTable(to)
    with table.connect() as connection:
        table.stages.own(connection)
        assert stages(database) == 1
    alive.go()
    assert (alive.said(), alive.ended()) == (2, 0)
    assert published(database, to) == {0: {("a", 4)}}


def test_a_stage_that_a_task_still_writes_delays_nobody(database: Postgres, to: ToJdbc) -> None:
    """Its host may have vanished, which the server does not know yet. A worker that starts later removes the stage."""
    table = JdbcTable(to)
    with table.connect() as connection:
        rows = table.stages.make(connection, dead := f"{STAGE}{0:016x}", ["n", "writer"])
        with psycopg.connect(connection.info.dsn, password=database.password) as task:
            task.execute(f"INSERT INTO {rows} VALUES (1, 'a', 't', 0, 0)")
            began = time.monotonic()
            assert table.stages.own(connection) != dead
            assert time.monotonic() - began < 3
        assert stages(database) == 1
        table.stages.own(connection)
        assert stages(database) == 0


def test_a_task_that_stages_its_rows_again_fails(database: Postgres, to: ToJdbc) -> None:
    """Spark runs it again if the reply to its commit was lost: the batch is tried again instead, with a new stage."""
    table = JdbcTable(to)
    with table.connect() as connection:
        rows = table.stages.make(connection, stage := table.stages.own(connection), ["n", "writer"])

        def run_task(number: int) -> None:
            with psycopg.connect(connection.info.dsn, password=database.password) as task, task.cursor() as cursor:
                for row in range(3):
                    cursor.execute(f"INSERT INTO {rows} VALUES (1, 'a', 't', 0, {(number << 33) + row})")

        run_task(0)
        run_task(1)
        with pytest.raises(psycopg.errors.UniqueViolation):
            run_task(0)
        assert table.stages.rows(connection, stage) == {("t", 0): 6}


def test_a_range_that_overlaps_a_published_one_is_refused(database: Postgres, to: ToJdbc) -> None:
    """Only that range: the rest of its batch is published."""
    table = JdbcTable(to)

    def publish(first: int, **other: int) -> int:
        with table.connect() as connection:
            stage = table.stages.own(connection)
            parts = [msgspec.structs.replace(planned(first), **other), planned(30 + 3 * first, 7)]
            fill(table, connection, stage, dict.fromkeys(parts, 3), "a")
            return table.publish(connection, dict.fromkeys(parts, 3), {}, stage, ["n", "writer"], lambda: None)

    assert publish(3) == 2
    assert publish(3) == 0
    for first in (1, 2, 4, 5):
        text = rf"t-0 \[{first}, {first + 3}\).* overlaps \[3, 6\).*offsets reset GROUP --to-offset 6 --topic t:0 "
        with pytest.raises(RangeOverlap, match=text):
            publish(first)
        there = identity_of(planned(30 + 3 * first, 7))
        assert table.has([identity_of(planned(first)), there]) == [there]
    with pytest.raises(RangeOverlap):
        publish(2, until=7)
    with pytest.raises(RangeOverlap):
        table.set_aside(RangeIdentity("t", 0, -5, 0, 4, 7), 3)
    assert {n: rows for n, rows in published(database, to).items() if n < 30} == {3: {("a", 3)}}
    assert publish(6) == 2
    assert publish(0) == 2, "a range before all others"
    assert publish(4, epoch=3) == 1, "a later epoch; the rest of the batch was there"
    for epoch, first in ((0, 4), (0, 3), (2, 2), (2, 6)):
        with pytest.raises(RangeOverlap, match=rf"epoch {epoch} .*overlaps \[\d, \d\).* --to-offset {9 - epoch} "):
            publish(first, epoch=epoch)
    with pytest.raises(RangeOverlap, match="of a later epoch"):
        table.set_aside(RangeIdentity("t", 0, -5, 2, 4, 7), 3)
    assert [publish(7, epoch=2), publish(1, epoch=2)] == [2, 1], "beside it"


def test_an_overlap_is_found_in_a_ledger_with_overlapping_ranges(database: Postgres, to: ToJdbc) -> None:
    """As written by versions that did not refuse them."""
    table = JdbcTable(to)
    for first, until in ((0, 100), (10, 20), (30, 40)):
        query = "INSERT INTO kzconsumer_ledger VALUES (%s, 't', 0, -5, 0, %s, %s, 3, 3, 0)"
        database.query(query, [to.owner_id, first, until])
    with pytest.raises(RangeOverlap, match=r"overlaps \[0, 100\).* --to-offset 100 "):
        table.set_aside(RangeIdentity("t", 0, -5, 0, 50, 60), 3)


def test_all_ranges_are_looked_up_in_one_query(to: ToJdbc, monkeypatch: pytest.MonkeyPatch) -> None:
    table = JdbcTable(to)
    ranges = [RangeIdentity("t", n, -5, 0, 0, 3) for n in range(3000)]
    assert table.set_aside(ranges[7], 3)
    with table.connect() as connection:
        stage = table.stages.own(connection)
        rows = {planned(0, n, 0): 0 for n in (5, 2999)}
        assert table.publish(connection, rows, {}, stage, ["n", "writer"], lambda: None) == 2
    asked: list[object] = []
    execute = psycopg.Connection.execute

    def counted(self: Any, query: Any, *more: Any, **named: Any) -> Any:
        asked.append(query)
        return execute(self, query, *more, **named)

    monkeypatch.setattr(psycopg.Connection, "execute", counted)
    assert table.has(ranges) == [ranges[5], ranges[2999]]
    assert table.has([]) == []
    assert len(asked) <= 4, "with the first statements of each connection"


def test_two_concurrent_writers_of_overlapping_ranges(database: Postgres, to: ToJdbc) -> None:
    """The second one waits for the first and does not use its earlier snapshot of the table."""
    first = about_to_commit(to)
    table, refused = JdbcTable(to), []

    def second() -> None:
        part = msgspec.structs.replace(planned(1), records=0)
        with table.connect() as connection:
            try:
                table.publish(connection, {part: 0}, {}, table.stages.own(connection), ["n"], lambda: None)
            except RangeOverlap as error:
                refused.append(error)

    other = threading.Thread(target=second)
    other.start()
    waiting = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    assert wait_until(lambda: bool(database.query(waiting)), 30)
    first.go()
    assert (first.said(), first.ended()) == (2, 0)
    other.join(30)
    assert refused
    assert published(database, to) == {0: {("a", 4)}}


def test_a_range_set_aside_is_not_published_by_a_late_writer(database: Postgres, to: ToJdbc) -> None:
    """Not even by a member that was about to commit it and was suspended: setting aside waits for its end."""
    zombie = about_to_commit(to)
    table = JdbcTable(to)
    aside, other = RangeIdentity("t", 0, -5, 0, 0, 3), RangeIdentity("t", 1, -5, 0, 0, 3)
    assert table.set_aside(aside, 3)
    zombie.go()
    assert zombie.ended() == 1
    assert published(database, to) == {}
    with table.connect() as connection:
        stage = table.stages.own(connection)
        rows = dict.fromkeys([planned(0), planned(0, 1)], 3)
        fill(table, connection, stage, rows, "b")
        with pytest.raises(SetAside, match=r"^t\+0\+"):
            table.publish(connection, rows, {}, stage, ["n", "writer"], lambda: None)
        with pytest.raises(SetAside):  # this is what a member that finds its plan gets
            table.missing(connection, list(rows))
    assert published(database, to) == {0: {("b", 3)}}
    assert table.has([aside, other]) == [other]
    assert (table.set_aside(aside, 3), table.set_aside(other, 3)) == (True, False)
