"""What a member of a large group costs, in a simulated group: `python -m tests.bench.scale --simulated`.

Seconds are of the simulation's clock, which knows no processor time: they count round trips and waits. Requests, bytes
and processor time are of each member that was there at the end of a phase. No partition is held twice at any time, and
none is without owner after a phase, or the program fails.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec

from tests.bench.report import Spread, plain
from tests.support.simulated.crowd import Cost, Crowd, crowd

LIMIT = 120.0
"""Seconds until the group has to be at rest."""
NO_LEADER = 3.0
"""Seconds without a leader of ZooKeeper."""
MINUTE = 60.0
OPERATIONS = "get", "multi", "exists", "children"
"""Those that are shown one by one, on the average of all members."""


class Phase(msgspec.Struct, frozen=True):
    """One thing that happened to the group."""

    name: str
    seconds: float
    """Until no partition changed its owner any more; of the restarts, the mean of all leaves and joins."""
    rebalances: Spread
    requests: Spread
    """To ZooKeeper, without the probes of sessions."""
    kinds: dict[str, float]
    """The requests by operation, on the average."""
    received: Spread
    """Bytes from ZooKeeper."""
    processor: Spread
    """Seconds."""


def phases(members: int, topics: int, partitions: int, spread: float, restarts: int, seed: int) -> Iterator[Phase]:
    """`partitions` of each topic; `spread`: seconds over which the members start."""
    with crowd(seed, topics, partitions) as group:
        began = group.world.now
        for _ in range(members):
            group.world.after(group.world.random.uniform(0, spread), group.join)
        group.world.pass_time(spread)
        yield _phase("start", group.rest(LIMIT, began), group)
        group.world.pass_time(MINUTE)
        yield _phase("a minute at rest", 0.0, group)
        if restarts:
            seconds = [each for _ in range(restarts) for each in _restart(group)]
            yield _phase(f"{restarts} restarted in turn", sum(seconds) / len(seconds), group)
        for member in list(group.members.values())[: members // 3]:
            group.kill(member)
        yield _phase("a third killed", group.rest(LIMIT), group)
        group.lose_leader(NO_LEADER)
        yield _phase("no leader for 3 s", group.rest(LIMIT), group)


def _restart(group: Crowd) -> Iterator[float]:
    began = group.world.now
    group.leave(next(iter(group.members.values())))
    yield group.rest(LIMIT, began)
    group.join()
    yield group.rest(LIMIT)


def _phase(name: str, seconds: float, group: Crowd) -> Phase:
    costs = group.costs()
    kinds: Counter[str] = Counter()
    for cost in costs:
        kinds.update(cost.requests)
    del kinds["probe"]
    return Phase(
        name=name,
        seconds=seconds,
        rebalances=Spread.of([cost.rebalances for cost in costs]),
        requests=Spread.of([_asked(cost) for cost in costs]),
        kinds={kind: number / len(costs) for kind, number in kinds.most_common()},
        received=Spread.of([cost.received for cost in costs]),
        processor=Spread.of([cost.processor for cost in costs]),
    )


def _asked(cost: Cost) -> int:
    return cost.requests.total() - cost.requests["probe"]


def table(found: Sequence[Phase], members: int, partitions: int) -> str:
    columns = ("", "seconds", "rebalances", "requests", "most", *OPERATIONS, "others", "KiB read", "CPU ms")
    return plain(
        f"{members:,} simulated members, {partitions:,} partitions", [columns, *(row(phase) for phase in found)]
    )


def row(phase: Phase) -> tuple[str, ...]:
    operations = [phase.kinds.get(name, 0.0) for name in OPERATIONS]
    return (
        phase.name,
        f"{phase.seconds:.2f}",
        f"{phase.rebalances.median:,.0f}",
        f"{phase.requests.median:,.0f}",
        f"{phase.requests.max:,.0f}",
        *(f"{mean:,.1f}" for mean in (*operations, sum(phase.kinds.values()) - sum(operations))),
        f"{phase.received.median / 1024:,.0f}",
        f"{phase.processor.median * 1000:,.0f}",
    )
