"""What rows of PostgreSQL's ledger say about a range that is about to be inserted, and how tasks connect, without
PostgreSQL."""

from __future__ import annotations

import msgspec
import pytest

from kzconsumer.errors import DestinationWentBackError
from kzconsumer.model import RangeIdentity
from kzconsumer_files.fold_plan import Span
from kzconsumer_files.range_names import RangeOverlap
from kzconsumer_spark.destinations.jdbc_table import LedgerRow, require_place
from kzconsumer_spark.destinations.jdbc_writer import staging_options
from kzconsumer_spark.worker_protocol.messages import ToJdbc

PART = RangeIdentity("t", 0, 42, 0, 10, 20)
BEFORE = PART._replace(first=5, until=10)
ITSELF, FOLLOWED, OTHER = (10, 20, LedgerRow.OVERLAPS), (5, 10, LedgerRow.FOLLOWED), (15, 25, LedgerRow.OVERLAPS)


@pytest.mark.parametrize(
    ("followed", "found"), [(None, []), (None, [ITSELF]), (BEFORE, [FOLLOWED]), (BEFORE, [ITSELF, FOLLOWED])]
)
def test_a_range_has_a_place_behind_the_one_that_it_follows(
    followed: RangeIdentity | None, found: list[tuple[int, int, LedgerRow]]
) -> None:
    require_place(PART, followed, found, lambda: [Span(10, 20)])


@pytest.mark.parametrize(("last", "ends"), [([Span(2, 4)], 4), ([], None)])
@pytest.mark.parametrize("found", [[], [OTHER]])
def test_a_ledger_without_the_range_before_takes_nothing(
    found: list[tuple[int, int, LedgerRow]], last: list[Span], ends: int | None
) -> None:
    with pytest.raises(DestinationWentBackError) as lacking:
        require_place(PART, BEFORE, found, lambda: last)
    assert (lacking.value.lacking, lacking.value.ends) == (BEFORE, ends)


@pytest.mark.parametrize(("followed", "more"), [(None, []), (BEFORE, [FOLLOWED])])
def test_a_range_that_overlaps_another_one_is_told_where_the_last_one_ends(
    followed: RangeIdentity | None, more: list[tuple[int, int, LedgerRow]]
) -> None:
    with pytest.raises(RangeOverlap, match="31"):
        require_place(PART, followed, [*more, OTHER], lambda: [Span(30, 31)])


def test_a_range_that_a_later_epoch_has_is_refused() -> None:
    """The group's nodes are of before a reset."""
    with pytest.raises(RangeOverlap, match=r"overlaps \[10, 20\) of a later epoch.* --to-offset 31 "):
        require_place(PART, BEFORE, [FOLLOWED, (10, 20, LedgerRow.LATER)], lambda: [Span(30, 31)])


def test_a_task_gives_up_a_host_that_has_vanished() -> None:
    """Later if the user says so. Where rows are staged is not up to the user."""
    to = ToJdbc(url="jdbc:postgresql://h/d", table="orders", user="u")
    assert staging_options(to, "stage") == {
        "reWriteBatchedInserts": "true",
        "logServerErrorDetail": "false",
        "socketTimeout": "300",
        "url": "jdbc:postgresql://h/d",
        "dbtable": "stage",
        "driver": "org.postgresql.Driver",
        "stringtype": "unspecified",
        "user": "u",
    }
    users = msgspec.structs.replace(to, write_options={"socketTimeout": "900", "dbtable": "theirs", "batchsize": "5"})
    assert staging_options(users, "stage") == staging_options(to, "stage") | {"socketTimeout": "900", "batchsize": "5"}
