"""A stream, compared with a model: what it hands out, and what counts as processed, whatever happens in between."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.chunks import chunk, progress, put
from tests.support.schedules import schedules
from tests.support.streams import rows, stream_of, take

WHAT = (
    *("fetch", "message", "ack") * 3,
    *("batch", "ack below", "ack the last") * 2,
    "pause",
    "resume",
    "revoke",
    "release",
)
CHUNKS = st.sampled_from([(1, range(1)), (3, range(2)), (7, (2, 5)), (4, ()), (55, range(55))])
"""The offsets of each, and those that have records; the last one has more than a lot of messages."""
STEPS = schedules(st.tuples(st.sampled_from(WHAT), st.integers(0, 1), CHUNKS, st.integers(0, 99)), 30)


class Claim:
    """Of one partition: what was fetched, and what became of it."""

    def __init__(self, partition: int, start: int) -> None:
        self.progress = progress(partition, start)
        self.start = self.fetched = start
        self.due = deque[list[int]]()
        """The records that each chunk has left, by their offsets."""
        self.handed_out: list[int] = []
        self.unfinished = set[int]()
        self.settled = self.lost = False

    def settle(self) -> None:
        self.settled = True

    def check(self) -> None:
        """A hole counts as processed with the record before it or with the one behind it."""
        end = min(self.unfinished, default=self.due[0][0] if self.due else self.fetched)
        least = max((each + 1 for each in self.handed_out if each < end), default=self.start)
        assert least <= self.progress.processed <= end
        assert self.progress.open or self.settled == (not self.unfinished)


class Model:
    def __init__(self, *, explicit: bool) -> None:
        self.explicit = explicit
        self.stream = stream_of(explicit=explicit)
        self.claims = [Claim(number, 0) for number in range(2)]
        self.taken: list[tuple[Any, Claim, list[int]]] = []
        self.batch: tuple[Claim, list[int]] | None = None
        """The one in hand."""

    def check(self) -> None:
        for claim in self.claims:
            claim.check()
        cursor = self.stream.cursor
        if (counted := cursor._unacknowledged) is not None:
            held = (each for _, of, each in self.taken if not (of.lost or of.unfinished.isdisjoint(each)))
            assert counted.total - len(cursor._lot) == sum(map(len, held))

    async def play(self, what: str, number: int, fetched: tuple[int, tuple[int, ...]], which: int) -> None:
        claim, cursor = self.claims[number], self.stream.cursor
        match what:
            case "fetch" if claim.progress.open:
                offsets = [claim.fetched + each for each in fetched[1]]
                put(cursor.queue, chunk(claim.progress, claim.fetched, claim.fetched + fetched[0], offsets))
                claim.fetched += fetched[0]
                if offsets:
                    claim.due.append(offsets)
            case "message" | "batch":
                await self.take_next(what)
            case "ack" if self.taken:
                taken, of, offsets = self.taken[which % len(self.taken) if self.explicit else -1]
                assert self.stream.ack(taken) is not of.lost
                of.unfinished -= set(offsets)
            case "ack the last" if self.taken:
                _, of, offsets = self.taken[-1]
                assert self.stream.ack() is not of.lost or not self.explicit
                of.unfinished -= set(offsets)
            case "ack below" if self.batch is not None:
                of, offsets = self.batch
                below = offsets[-1] + 1 if which % 2 else offsets[which % len(offsets)]
                self.stream.ack_below(below)
                of.unfinished -= {each for each in offsets if each < below}
            case "pause" if claim.progress.open and not claim.progress.paused:
                claim.progress.paused = True
                cursor.pause(claim.progress)
            case "resume" if claim.progress.open and claim.progress.paused:
                claim.progress.paused = False
                cursor.resume(claim.progress)
            case "revoke" if claim.progress.open:
                cursor.drop(claim.progress)
                claim.progress.close(claim.settle)
                claim.due.clear()
            case "release" if not claim.progress.open:
                claim.progress.close()
                claim.lost = True
                self.claims[number] = Claim(number, claim.progress.processed)

    async def take_next(self, what: str) -> None:
        iterator: Any = aiter(self.stream) if what == "message" else self.stream.batches()
        if any(each.due for each in self.claims if not each.progress.paused):
            (taken,) = await take(iterator, 1)
            self.finish_the_last()
            partition = taken.partition if what == "message" else taken.column("partition")[0].as_py()
            claim = self.claims[partition]
            offsets = [taken.offset] if what == "message" else rows(taken)
            assert offsets == claim.due[0][: 1 if what == "message" else None]
            del claim.due[0][: len(offsets)]
            if not claim.due[0]:
                claim.due.popleft()
            claim.handed_out += offsets
            claim.unfinished.update(offsets)
            self.taken.append((taken, claim, offsets))
            self.batch = (claim, offsets) if what == "batch" else None
        else:
            waiting = asyncio.ensure_future(anext(aiter(self.stream)))
            for _ in range(20):
                await asyncio.sleep(0)
            assert not waiting.done()
            waiting.cancel()
            await asyncio.wait([waiting])
            self.finish_the_last()
            if not self.explicit:
                self.batch = None

    def finish_the_last(self) -> None:
        """A request for the next message means that the last one is processed, unless acknowledgement is explicit."""
        if self.taken and not self.explicit:
            _, claim, offsets = self.taken[-1]
            claim.unfinished -= set(offsets)


@pytest.mark.parametrize("explicit", [False, True], ids=["implicit", "explicit"])
@given(steps=STEPS)
async def test_nothing_is_left_out_or_handed_out_twice_and_processed_is_what_is_finished(
    steps: list[tuple[str, int, tuple[int, tuple[int, ...]], int]], explicit: bool
) -> None:
    model = Model(explicit=explicit)
    for what, number, fetched, which in steps:
        await model.play(what, number, fetched, which)
        model.stream.cursor.checkpoint()
        model.check()
