"""The queue between fetchers and a stream, compared with a model after every step."""

from __future__ import annotations

from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from kzconsumer.offsets.progress import Chunk, Progress
from kzconsumer.streams.chunk_queue import ByteBudget, ChunkQueue, ManyQueues
from tests.support.chunks import progress

MOST, SHARED = 100, 150
PARTITIONS = st.integers(0, 2)
SIZES = st.sampled_from((0, 1, 40, 99, 100, 160))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), PARTITIONS, SIZES),
        st.tuples(st.just("put"), PARTITIONS, SIZES),
        st.tuples(st.sampled_from(("get", "pause", "resume", "close")), PARTITIONS, SIZES),
    ),
    max_size=30,
)


class Model:
    """Lines of chunks by partition, of which nothing is counted but by going through them. Even partitions are of
    broker 1, others of broker 2."""

    def __init__(self) -> None:
        self.claims = [progress(number) for number in range(3)]
        self.queued: dict[Progress, list[Chunk]] = defaultdict(list)
        self.held: dict[Progress, list[Chunk]] = defaultdict(list)
        self.made = 0

    def play(self, queue: ChunkQueue, what: str, number: int, size: int, rest: Chunk | None = None) -> bool:
        """Do to both what puts chunks or moves them. `rest` is what the stream gives back at a pause."""
        claim = self.claims[number]
        match what:
            case "put":
                self.made += 1
                chunk = Chunk(claim, self.made, self.made + 1, size=size, broker=1 + number % 2)
                queue.reserve(chunk.size, chunk.broker)
                queue.put(chunk)
                (self.held if claim.paused else self.queued)[claim].append(chunk)
            case "pause" if not claim.paused:
                claim.paused = True
                queue.hold(claim, rest)
                self.held[claim] = [*([rest] if rest is not None else []), *self.queued.pop(claim, [])]
            case "resume" if claim.paused:
                claim.paused = False
                queue.unhold(claim)
                self.queued[claim] = self.held.pop(claim, [])
            case "close":
                claim.close()
                queue.drop(claim)
                self.queued.pop(claim, None)
                self.held.pop(claim, None)
                self.claims[number] = progress(number)
            case _:
                return False
        return True

    @property
    def waiting(self) -> list[Chunk]:
        return [chunk for line in self.queued.values() for chunk in line]

    @property
    def shared(self) -> int:
        return sum(chunk.size for lines in (self.queued, self.held) for line in lines.values() for chunk in line)

    @property
    def has_room(self) -> bool:
        used = sum(chunk.size for chunk in self.waiting)
        return used == 0 or (used < MOST and self.shared < SHARED)

    def room_for(self, broker: int) -> bool:
        return self.has_room or not any(chunk.size for chunk in self.waiting if chunk.broker == broker)


@given(STEPS)
def test_what_is_queued_held_and_counted_is_that_of_the_model(steps: list[tuple[str, int, int]]) -> None:
    budget, model, notified = ByteBudget(SHARED), Model(), list[str]()
    queue = ChunkQueue(MOST, budget)
    queue.subscribe(lambda: notified.append("room"))
    taken: dict[Progress, Chunk] = {}  # what the stream has in hand, which a pause gives back

    for what, number, size in steps:
        claim = model.claims[number]
        before = {broker: model.room_for(broker) for broker in (1, 2)}
        notified.clear()
        if what == "get":
            got = queue.get_nowait()
            assert (got is None) is (not model.waiting)
            if got is not None:
                assert got is model.queued[got.progress].pop(0)
                taken[got.progress] = got
        elif not model.play(queue, what, number, size, taken.get(claim)):
            continue
        elif what != "put":
            taken.pop(claim, None)
        assert queue.filled == (len(model.waiting), sum(chunk.size for chunk in model.waiting), MOST)
        assert bool(queue) is bool(model.waiting)
        assert (budget.used, queue.has_room) == (model.shared, model.has_room)
        after = {broker: queue.has_room_for(broker) for broker in (1, 2)}
        assert after == {broker: model.room_for(broker) for broker in (1, 2)}
        # Its fetcher looks at partitions again only when it is notified.
        if what not in ("put", "get") or any(after[broker] and not before[broker] for broker in (1, 2)):
            assert notified


@given(STEPS)
async def test_a_sink_takes_what_is_queued_in_any_of_its_queues_and_then_waits(
    steps: list[tuple[str, int, int]],
) -> None:
    """A queue that counts what it has not would be asked again and again."""
    queues = [ChunkQueue(MOST) for _ in range(3)]
    many = ManyQueues(queues)
    model = Model()
    for what, number, size in steps:
        if what != "get":
            model.play(queues[number], what, number, size)
        elif model.waiting:
            got = await many.get()
            assert got is model.queued[got.progress].pop(0)
        else:
            getting = many.get()
            assert getting.send(None) is not None  # it waits, instead of looking for ever
            getting.close()
