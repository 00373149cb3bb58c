"""Single schedules of the simulated group: what must not depend on hypothesis finding it."""

from __future__ import annotations

import json
import time

import pytest

from tests.support.simulated.group import simulated_group


@pytest.mark.parametrize(
    "registration",
    [
        b'{"subscription":{"t":1000000},"pattern":"static"}',
        b'{"subscription":{".*":1000000},"pattern":"white_list"}',
        b'{"subscription":{"t":1},"pattern":"static","more":%s}' % (b"[" * 5000 + b"]" * 5000),
        b'{"subscription":{"%s":1},"pattern":"white_list"}' % (b"(" * 2000 + b")" * 2000),
        json.dumps({"subscription": {"a\0b": 1}, "pattern": "static"}).encode(),
    ],
    ids=["streams", "streams of a list", "nested", "nested pattern", "no path"],
)
def test_an_absurd_registration_is_waited_for(registration: bytes) -> None:
    """Nobody ends and nobody is late over it: what is owned stays owned, and the newcomer joins when it has left."""
    with simulated_group(1) as group:
        group.logs.grow("t", 6)
        first, second = (group.join(name, {"t": 1}, 0.0, in_batches=False) for name in "ab")
        assert group.world.pass_time(10, lambda: not group.settled())
        owned = first.held, second.held
        began = time.process_time()
        group.poison(20.0, registration)
        group.world.pass_time(2)
        third = group.join("c", {"t": 1}, 0.0, in_batches=False)
        group.world.pass_time(17)
        assert (first.held, second.held, third.held) == (*owned, {})
        assert time.process_time() - began < 10.0
        group.check()
        assert group.world.pass_time(30, lambda: not group.settled())
        assert third.held
