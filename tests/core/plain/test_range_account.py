"""A range that is read: each record once or an error, whatever brokers answer, and never an end without a proof."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

import msgspec
import pytest

from kzconsumer.brokers.protocol.log_reads import READ_COMMITTED, READ_UNCOMMITTED, EpochEnd
from kzconsumer.errors import ConnectionLostError, KzConsumerError, OffsetLostError
from kzconsumer.fetcher.range_account import PATIENCE, RangeAccount, questions
from kzconsumer.model import OffsetRange, TopicPartition
from kzconsumer.records.decode import decode
from kzconsumer.settings.sections import FetchSettings
from tests.support.extent import seeds
from tests.support.model_log import ModelLog

P0 = TopicPartition("orders", 0)
LIMIT: Final = 10.0
SETTINGS = FetchSettings(request_timeout=LIMIT, max_bytes=200)


class Play:
    """One range of a model log, read with an account. A step is one answer, or the lack of one."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.chance = random.Random(seed)
        self.isolation = self.chance.choice((READ_COMMITTED, READ_UNCOMMITTED))
        self.log = ModelLog(self.chance, self.isolation)
        self.first = self.chance.randint(self.log.start, self.log.end)
        self.until = self.chance.randint(self.first, self.log.end)
        self.log.damaged_from = self.chance.choice((self.until, self.log.end))  # what is behind it is not read
        self.knows_local = self.log.tiered or self.chance.random() < 0.8
        self.time = self.moved = 100.0
        span = OffsetRange(*P0, self.first, self.until)
        self.account = RangeAccount(span, SETTINGS, self.isolation, self.time)
        self.got: list[int] = []
        self.ever = self.log.visible

    def step(self, event: str) -> None:
        """Raises what the account raises."""
        self.time += self.chance.choice((0.1, 1.0, 3.0))
        if event in ("retain", "compact", "settle"):
            getattr(self.log, event)()
            return
        (question,) = questions([self.account], SETTINGS)
        # Beside another partition, unless the account wants to be asked for alone.
        asked = 1 if self.account.alone else self.chance.choice((1, 2))
        before = self.account.first
        if event == "throttled":
            self.account.throttled(self.time)
        elif event == "unanswered":
            self.account.unanswered(ConnectionLostError("no leader"), self.time)
        else:
            self.answer(event, asked, question.accounts[0].position.max_bytes)
        if self.account.first > before:
            self.moved = self.time
        elif not self.account.complete and (error := self.account.overdue(self.moved, self.time, follow=False)):
            raise error

    def answer(self, event: str, asked: int, most: int) -> None:
        offset = self.account.first
        part = self.log.fetch(P0, offset, most)
        # What tiered storage does not send in time, or does not get a turn to send.
        if not part.error and ((event == "slow" and offset < self.log.local) or (event == "no room" and asked > 1)):
            part = msgspec.structs.replace(part, records=memoryview(b""))
        elif event == "elsewhere" and not part.error:
            part = msgspec.structs.replace(part, records=memoryview(b""), preferred=2)
        decoded = None
        if part.records:
            decoded = decode(part.records, topic="orders", partition=0, start=offset, aborted=part.aborted)
        records = self.account.take(part, decoded, asked=asked, throttled=False, time=self.time)
        self.got += [message.offset for message in records.messages()]
        if self.account.asks_where:
            self.account.local_start(self.log.local if self.knows_local else None, self.time)

    def check(self) -> None:
        """What was delivered is in order, was there, and lacks nothing below `first` that still is there."""
        assert self.got == sorted(set(self.got)), self.seed
        assert self.ever.issuperset(self.got), self.seed
        there = {offset for offset in self.log.visible if self.first <= offset < self.account.first}
        assert there <= set(self.got), self.seed


EVENTS = ["answer", "slow", "no room", "throttled", "unanswered", "elsewhere", "compact", "settle"]
GAMES = seeds(1500, 50_000)


def events(seed: int, *more: str) -> list[str]:
    """Each lasts for some steps."""
    chance = random.Random(seed)
    phases = [(chance.choice([*EVENTS, *more]), chance.randint(1, 3)) for _ in range(15)]
    return [event for event, times in phases for _ in range(times)]


def test_every_offset_is_accounted_for_or_there_is_an_error() -> None:
    for game in GAMES:
        play = Play(game)
        try:
            for event in events(game, "retain"):
                if not play.account.complete:
                    play.step(event)
                    play.check()
        except KzConsumerError:
            play.check()


def test_a_range_ends_once_brokers_answer_as_usual() -> None:
    """Also at a hole that reaches to the end of the log: no error without retention, within a patience."""
    for game in GAMES:
        play = Play(game)
        for event in [*events(game)[:8], "settle"]:
            if not play.account.complete:
                play.time = play.moved  # these steps take no time: none is overdue
                play.step(event)
        for _ in range(60):
            if play.account.complete:
                break
            play.moved = max(play.moved, play.time - LIMIT)
            play.step("answer")
        assert play.account.complete, game
        play.check()


def waiting(seconds: float, step: Callable[[Play], None], **log: int) -> KzConsumerError | None:
    """What a range of a log that is asked every second fails with, and not before."""
    play = Play(0)
    play.knows_local = True
    play.log = ModelLog(random.Random(0), READ_COMMITTED)
    play.log.start, play.log.end, play.log.local = 0, 100, 100
    play.log.high, play.log.stable = log.get("high", 100), log.get("stable", 100)
    play.account = RangeAccount(OffsetRange(*P0, 80, 90), SETTINGS, READ_COMMITTED, 0.0)
    for second in range(int(seconds) + 1):
        play.time = float(second)
        step(play)
        if (error := play.account.overdue(0.0, play.time, follow=False)) is not None:
            return error
    assert not play.account.complete
    return None


def slow(play: Play) -> None:
    play.answer("slow", 1, 100)


def throttled(play: Play) -> None:
    play.account.throttled(play.time)


def unanswered(play: Play) -> None:
    play.account.unanswered(ConnectionLostError("no leader"), play.time)


@pytest.mark.parametrize(
    ("step", "log", "patience", "kind", "said"),
    [
        (
            slow,
            {},
            PATIENCE * LIMIT,
            ConnectionLostError,
            "80 to 90: the answers have no records, though the log goes on",
        ),
        (slow, {"stable": 85}, PATIENCE * LIMIT, ConnectionLostError, "a transaction that begins at 85 has not ended"),
        (throttled, {}, PATIENCE * LIMIT, ConnectionLostError, "the brokers' quota for this client is exceeded"),
        (slow, {"high": 85, "stable": 85}, LIMIT, OffsetLostError, "the log ends at 85, before 90"),
        (unanswered, {}, LIMIT, ConnectionLostError, "no leader"),
    ],
)
def test_how_long_what_is_waited_for(
    step: Callable[[Play], None], log: dict[str, int], patience: float, kind: type[Exception], said: str
) -> None:
    assert waiting(patience, step, **log) is None
    error = waiting(patience + 1, step, **log)
    assert isinstance(error, kind)
    assert said in str(error)


def test_a_log_that_begins_behind_the_offset_has_lost_it() -> None:
    """Though the answer has records: retention came between a broker's looks at the start and at the segments."""
    play = Play(0)
    play.log.settle()
    play.account = RangeAccount(OffsetRange(*P0, play.log.start, play.log.end), SETTINGS, play.isolation, 0.0)
    part = msgspec.structs.replace(play.log.fetch(P0, play.log.start, 100), log_start_offset=play.log.start + 1)
    decoded = decode(part.records, topic="orders", partition=0, start=play.log.start)
    with pytest.raises(
        OffsetLostError, match=f"hold offset {play.log.start} any more: it begins at {play.log.start + 1}"
    ):
        play.account.take(part, decoded, asked=1, throttled=False, time=0.0)


def test_a_log_in_which_other_records_have_taken_the_place_of_a_range_is_refused() -> None:
    account = RangeAccount(OffsetRange(*P0, 10, 25), SETTINGS, READ_UNCOMMITTED, 0.0)
    assert account.require_epoch(3, EpochEnd(0, 3, 25), 0.0)
    assert account.require_epoch(3, EpochEnd(0, 2, 30), 0.0)  # the leader of epoch 3 has written nothing
    said = "orders-0: offsets 10 to 25 were planned in leader epoch 3, whose records end at 15 now: 10 of them were cut"
    with pytest.raises(OffsetLostError, match=said):
        account.require_epoch(3, EpochEnd(0, 2, 15), 0.0)
    for unknown, reason in ((EpochEnd(0, -1, -1), "no leader epoch 3"), (EpochEnd(6, -1, -1), "NOT_LEADER")):
        assert not account.require_epoch(3, unknown, 0.0)
        assert reason in str(account.overdue(0.0, LIMIT + 1, follow=True))


@pytest.mark.parametrize("before", ["throttled", "too_slow"])
def test_what_is_not_answered_any_more_is_waited_for_as_long_as_an_answer(before: str) -> None:
    """Though records were waited for before that, for much longer; also if the read waits for new ones."""
    account = RangeAccount(OffsetRange(*P0, 0, 9), SETTINGS, READ_UNCOMMITTED, 0.0)
    getattr(account, before)(1.0)
    assert account.overdue(0.0, 1.0 + 2 * LIMIT, follow=False) is None
    error = ConnectionLostError("no leader")
    account.unanswered(error, 30.0)
    for follow in (False, True):
        assert account.overdue(0.0, 30.0 + LIMIT - 0.1, follow=follow) is None
        assert account.overdue(0.0, 30.0 + LIMIT + 0.1, follow=follow) is not None
