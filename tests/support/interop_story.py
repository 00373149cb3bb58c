"""Histories of one partition and its owners, written by hand, for tests of the judge of the interop runs."""

from __future__ import annotations

from tests.interop.evidence import Delivery, Evidence, Kind, Life, Span
from tests.interop.history import BROKER, TOOL, End, History, Ownership, Stored
from tests.interop.judge import Verdict, judge


class Story:
    """Things happen in the order of the calls; offset 0 is stored at the beginning. A delivery takes a millisecond."""

    def __init__(self) -> None:
        self._zxid = 0
        self._history = History()
        self._lives: list[Life] = []
        self._deliveries: dict[str, list[Delivery]] = {}
        self.disturbed: list[Span] = []
        self.sent = 0
        self.stores(TOOL, 0, 0.0)

    def member(self, name: str, kind: Kind, began: float = 0.0) -> Life:
        self._deliveries[name] = []
        life = Life(name, kind, name, began, delivered=self._deliveries[name])
        self._lives.append(life)
        return life

    def owns(self, life: Life, at: float) -> Ownership:
        owned = Ownership(0, life.consumer, 1, at, self._next())
        self._history.owned.append(owned)
        return owned

    def ends(self, owned: Ownership, how: End, at: float, by: str = "") -> None:
        owned.end, owned.ended, owned.last_zxid, owned.ended_by = how, at, self._next(), by or owned.consumer

    def stores(self, writer: Life | str, offset: int, at: float) -> None:
        name = writer if isinstance(writer, str) else writer.consumer
        self._history.stored.append(Stored(0, offset, name, at, self._next()))

    def delivers(self, life: Life, first: int, until: int, at: float) -> None:
        self.sent = max(self.sent, until)
        new = (Delivery(at + number / 1000, 0, offset) for number, offset in enumerate(range(first, until)))
        self._deliveries[life.member].extend(new)

    def judged(self) -> Verdict:
        return judge(Evidence({0: self.sent}, self._history, self._lives, self.disturbed))

    def _next(self) -> int:
        self._zxid += 1
        return self._zxid


def handed_over(story: Story, first: Kind, second: Kind) -> tuple[Life, Life, Ownership]:
    """The first delivers 0 to 9 and stores 10; the second has not begun."""
    one, other = story.member("one", first), story.member("other", second)
    owned = story.owns(one, 1.0)
    story.delivers(one, 0, 10, 2.0)
    story.stores(one if first is not Kind.KAFKA_NODE else BROKER, 10, 3.0)
    return one, other, owned


def continues(story: Story, life: Life, first: int, at: float = 20.0) -> None:
    """The member claims and delivers from there to 19."""
    story.owns(life, at)
    story.delivers(life, first, 20, at + 1)
