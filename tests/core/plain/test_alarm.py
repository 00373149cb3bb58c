"""A test that fails in the moment of its timeout is reported, and the run goes on."""

from __future__ import annotations

import signal

import pytest

from tests.support.alarm import LEAST, held_alarm


@pytest.mark.parametrize(("left", "afterwards"), [(60.0, 60.0), (1.0, LEAST), (0.0, 0.0)])
def test_the_alarm_is_held_while_a_report_is_made_and_rings_later(left: float, afterwards: float) -> None:
    ours, _ = signal.setitimer(signal.ITIMER_REAL, left)
    try:
        with held_alarm():
            assert signal.getitimer(signal.ITIMER_REAL)[0] == 0
        set_again, _ = signal.getitimer(signal.ITIMER_REAL)
    finally:
        signal.setitimer(signal.ITIMER_REAL, ours)
    assert afterwards * 0.9 <= set_again <= afterwards


def test_reports_are_made_without_it(request: pytest.FixtureRequest) -> None:
    hook = next(each for each in request.config.pluginmanager.get_plugins() if hasattr(each, "held_alarm"))
    call = pytest.CallInfo.from_call(lambda: None, "call")
    making = hook.pytest_runtest_makereport(request.node, call)
    next(making)
    held, _ = signal.getitimer(signal.ITIMER_REAL)
    with pytest.raises(StopIteration):
        making.send(None)
    assert held == 0 < signal.getitimer(signal.ITIMER_REAL)[0]
