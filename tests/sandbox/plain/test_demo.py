"""The pure parts of the demo: the board, when the producer may continue, what is printed and what is missing."""

from __future__ import annotations

import io
import tomllib
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet
from rich.console import Console, RenderableType

from kzconsumer.settings.settings import Settings
from kzconsumer_sandbox.demo.board import Board, MemberRow, MemberState, Reported, partition_rows
from kzconsumer_sandbox.demo.members import Allowance, configuration, value
from kzconsumer_sandbox.demo.observation import Counted, count, member_name
from kzconsumer_sandbox.demo.scenario import STALL
from kzconsumer_sandbox.demo.screen import judge, notes, picture, since, summary, verdict_table
from kzconsumer_spark.daemon.sink_options import SparkOptions, read_options


def board() -> Board:
    rows = partition_rows(
        [125_000, 125_000, 125_000],
        {0: "member-1", 1: "member-2"},
        {0: 100_000, 1: 90_000},
        {"member-1": {0: Reported("demo", 0, 120_000, 110_000), 1: Reported("demo", 1, 1, 1)}, "member-2": {}},
    )
    members = (
        MemberRow("member-1", 4_000_001, MemberState.CONSUMING, 1),
        MemberRow("member-2", 4_000_002, MemberState.KILLED, 1),
        MemberRow("member-3", 4_000_003, MemberState.STARTING, 0),
    )
    return Board(1_000_000, rows, members)


def drawn(picture: RenderableType, width: int = 80) -> list[str]:
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    console.print(picture)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_only_the_owner_in_zookeeper_counts() -> None:
    first, second, third = board().partitions
    assert (first.owner, first.fetched, first.consumed, first.committed, first.lag) == (
        "member-1",
        120_000,
        110_000,
        100_000,
        25_000,
    )
    assert (second.owner, second.fetched, second.consumed, second.lag) == ("member-2", None, None, 35_000)
    assert (third.owner, third.committed, third.lag) == (None, 0, 125_000)


def test_the_board_sums_up() -> None:
    assert (board().produced, board().committed, board().owned) == (375_000, 190_000, 2)
    assert board().owned_by("member-2") == {1}
    assert summary(board()) == (
        "produced 375,000, committed 190,000, lag 185,000; owners: member-1 1, member-2 1; member-3 starting Spark"
    )


def test_the_board_fits_80_columns() -> None:
    lines = drawn(picture(board()))
    assert not [line for line in lines if "…" in line]
    assert next(line.split() for line in lines if "member-1" in line) == [
        "0",
        "member-1",
        "125,000",
        "120,000",
        "110,000",
        "100,000",
        "25,000",
    ]
    assert any(line.split() == ["1", "member-2", "✝", "125,000", "·", "·", "90,000", "35,000"] for line in lines)
    assert any("its session still owns 1" in line for line in lines)


def test_the_allowance_grows_at_its_rate_up_to_its_limit() -> None:
    allowance = Allowance()
    assert allowance.at(0.0) == 0
    allowance.raise_to(300, 10.0)
    assert allowance.at(10.0) == 300
    allowance.raise_to(900, 20.0, seconds=6.0)
    assert [allowance.at(moment) for moment in (20.0, 21.0, 23.0, 26.0, 99.0)] == [300, 400, 600, 900, 900]
    allowance.raise_to(1000, 23.0, seconds=4.0)
    assert [allowance.at(moment) for moment in (23.0, 25.0, 27.0)] == [600, 800, 1000]


def test_members_may_wait_for_spark_as_long_as_they_do() -> None:
    """A start takes minutes where other processes take the processor: the demo gives up after its members."""
    options = SparkOptions(destination="parquet")
    assert options.attempts * options.start_timeout < STALL


def test_each_value_is_different() -> None:
    values = {value(number) for number in range(20_000)}
    assert len(values) == 20_000
    assert value(123_456).startswith(b'{"id":123456,"customer":')


def test_the_member_of_an_owner_node() -> None:
    assert member_name("demo", "demo_member-2-0") == "member-2"


def test_a_members_file_is_accepted_by_the_daemon() -> None:
    text = configuration(
        connect="127.0.0.1:2181/k391", group="demo", topic="demo", name="member-1", path=Path("/a b"), scratch=Path("s")
    )
    settings = Settings.from_dict(tomllib.loads(text))
    chosen = settings.require_daemon()
    assert (settings.group.consumer_id, chosen.plugin, chosen.options["path"]) == ("member-1", "spark", "/a b")
    assert read_options(chosen.options).conf["spark.driver.extraJavaOptions"].startswith("-XX:TieredStopAtLevel=1 ")


@pytest.mark.parametrize(
    ("counted", "missing_", "duplicates", "output"),
    [
        (Counted(1000, 1000, 0), 0, 0, "nothing is lost"),
        (Counted(1100, 1000, 0), 0, 100, "uncommitted records"),
        (Counted(999, 999, 0), 1, 0, "the demo has failed"),
    ],
)
def test_the_verdict(counted: Counted, missing_: int, duplicates: int, output: str) -> None:
    figures = judge(counted, produced=1000, takeover=6.1234, seconds=66.66)
    assert (figures.missing, figures.duplicates) == (missing_, duplicates)
    assert (figures.takeover_seconds, figures.seconds) == (6.123, 66.7)
    lines = drawn(verdict_table(figures, 7.0))
    assert any(output in line for line in lines)
    assert len(lines) == 8


def test_the_verdict_of_a_million_needs_no_second_line() -> None:
    figures = judge(Counted(1_123_456, 1_000_000, 0), produced=1_000_000, takeover=16.0, seconds=100.0)
    assert len(drawn(verdict_table(figures, 7.0))) == 8


def test_a_slow_takeover_and_odd_offsets_are_noted() -> None:
    counted = Counted(1000, 1000, 2)
    late = judge(counted, produced=1000, takeover=7.25, seconds=1.0)
    assert notes(late, counted, 7.0) == [
        "the takeover took 7.2 s, longer than the goal of 7.0 s",
        "2 messages were found at more than one offset",
    ]
    counted = Counted(1000, 1000, 0)
    assert notes(judge(counted, produced=1000, takeover=7.0, seconds=1.0), counted, 7.0) == []


def test_the_clock() -> None:
    assert [since(seconds) for seconds in (0.9, 65.0, 600.0)] == ["0:00", "1:05", "10:00"]


async def test_the_count_finds_lost_and_duplicated_records(tmp_path: Path) -> None:
    """The negative control: 7 is lost, 3 and 4 are duplicated (4 at two offsets), 100 was never produced."""
    numbers = [number for number in range(100) if number != 7] + [100, 3, 4]
    offsets = [number // 8 for number in numbers[:-1]] + [99]
    table = pa.table(
        {
            "value": pa.array([value(number) for number in numbers], pa.binary()),
            "partition": pa.array([number % 8 for number in numbers], pa.int32()),
            "offset": pa.array(offsets, pa.int64()),
        }
    )
    parquet.write_table(table, tmp_path / "records.parquet")
    counted = await count(tmp_path / "records.parquet", 100)
    assert counted == Counted(rows=102, distinct=99, elsewhere=1)
