"""A member leaves only if it does worse than the others, and the hold-down grows each time."""

from __future__ import annotations

from kzconsumer.group.fitness import FIRST_HOLD_DOWN, LONGEST_HOLD_DOWN, UNFIT_AFTER, Fitness, HoldDown
from kzconsumer.model import TopicPartition

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


def test_doubt_takes_a_minute_or_two_sessions() -> None:
    assert not Fitness(6.0).doubtful(UNFIT_AFTER - 0.1)
    assert Fitness(6.0).doubtful(UNFIT_AFTER)
    assert not Fitness(40.0).doubtful(79.0)
    assert Fitness(40.0).doubtful(80.0)


def test_it_leaves_if_others_store_offsets_meanwhile() -> None:
    fitness = Fitness(6.0)
    assert not fitness.others_advance({P0: 5, P1: 7})
    assert not fitness.others_advance({P0: 5, P1: 7})
    assert fitness.others_advance({P0: 5, P1: 8})


def test_it_stays_if_no_member_progresses_or_there_is_no_other() -> None:
    fitness = Fitness(6.0)
    assert not fitness.others_advance({})
    assert not fitness.others_advance({P0: 3})  # newly owned by others: nothing to compare with
    assert not Fitness(6.0).others_advance({})


def test_a_broker_response_ends_the_doubt_and_discards_earlier_observations() -> None:
    fitness = Fitness(6.0)
    fitness.others_advance({P0: 5})
    assert not fitness.doubtful(1.0)
    assert not fitness.others_advance({P0: 6})


def test_the_hold_down_doubles_up_to_half_an_hour() -> None:
    hold_down = HoldDown()
    assert hold_down.seconds == 0.0
    seen = []
    for time in range(8):
        hold_down.begin(float(time))
        seen.append(hold_down.seconds)
    assert seen == [60.0, 120.0, 240.0, 480.0, 960.0, LONGEST_HOLD_DOWN, LONGEST_HOLD_DOWN, LONGEST_HOLD_DOWN]


def test_the_hold_down_is_reset_after_a_long_fit_period() -> None:
    hold_down = HoldDown()
    hold_down.begin(0.0)
    hold_down.end(100.0)
    hold_down.begin(200.0)
    assert hold_down.seconds == 2 * FIRST_HOLD_DOWN
    hold_down.end(1000.0)
    hold_down.begin(1000.0 + LONGEST_HOLD_DOWN + 1)
    assert hold_down.seconds == FIRST_HOLD_DOWN
