"""The lease with an explicit clock: T = 6 s, so a sync every 1 s, valid for 3 s, silence after 2 s."""

from __future__ import annotations

import itertools

import anyio
import pytest
import structlog

from kzconsumer.errors import SessionExpiredError
from kzconsumer.zookeeper.heartbeat_and_lease import Beat, Heartbeat, Instant
from kzconsumer.zookeeper.session import ZooKeeperSession
from tests.support.simulated.clients import Clients

T = 6.0
APART = 1.7e9
NOTHING = 0.0
"""No bytes have arrived."""


def at(seconds: float, jumped: float = 0.0) -> Instant:
    return Instant(seconds, seconds + APART + jumped)


def attached(seconds: float = 100.0) -> Heartbeat:
    heartbeat = Heartbeat()
    heartbeat.attach(at(seconds), at(seconds), T)
    return heartbeat


def run(heartbeat: Heartbeat, start: float, until: float, *, answer: bool) -> float:
    """Beat on time from start to until; returns when the connection was found silent, otherwise `until`."""
    now = start
    while now < until:
        verdict = heartbeat.beat(at(now), NOTHING)
        assert verdict is not Beat.DOUBT
        if verdict is Beat.SILENT:
            return now
        if verdict is Beat.PROBE:
            heartbeat.probe_sent(at(now))
            if answer:
                heartbeat.probe_answered(at(now), at(now + 0.01))
        now += heartbeat.interval
    return until


def test_without_an_answer_there_is_no_lease() -> None:
    assert Heartbeat().safe_until(at(5.0)) == 0.0


def test_a_handshake_counts_from_its_sending() -> None:
    heartbeat = Heartbeat()
    heartbeat.attach(at(100.0), at(100.9), T)
    assert heartbeat.safe_until(at(100.9)) == pytest.approx(103.0)


def test_answered_syncs_renew_the_lease_and_are_sent_every_sixth_of_the_timeout() -> None:
    heartbeat = attached()
    sent = []
    now = 100.0
    while now < 110.0:
        if heartbeat.beat(at(now), NOTHING) is Beat.PROBE:
            heartbeat.probe_sent(at(now))
            heartbeat.probe_answered(at(now), at(now + 0.01))
            sent.append(now)
        now += heartbeat.interval
    assert [later - earlier for earlier, later in itertools.pairwise(sent)] == pytest.approx([1.0] * 9)
    assert heartbeat.safe_until(at(110.0)) == pytest.approx(sent[-1] + 3.0)


def test_unanswered_syncs_do_not_renew_the_lease_and_end_the_connection() -> None:
    heartbeat = attached()
    assert run(heartbeat, 100.0, 200.0, answer=False) == pytest.approx(102.0)
    assert heartbeat.safe_until(at(102.0)) == pytest.approx(103.0)


def test_silence_is_found_as_soon_as_it_has_lasted_long_enough() -> None:
    heartbeat = attached()
    assert heartbeat.beat(at(100.0), NOTHING) is Beat.PROBE
    heartbeat.probe_sent(at(100.0))
    heartbeat.probe_answered(at(100.0), at(100.4))
    assert run(heartbeat, 101.0, 200.0, answer=False) == pytest.approx(102.4)


@pytest.mark.parametrize("answered", [True, False])
def test_a_loop_that_was_busy_gets_time_to_read_the_answer(answered: bool) -> None:
    heartbeat = attached()
    for second in (100.0, 101.0):
        assert heartbeat.beat(at(second), NOTHING) is Beat.PROBE
        heartbeat.probe_sent(at(second))
    assert heartbeat.beat(at(102.9), NOTHING) is Beat.PROBE
    heartbeat.probe_sent(at(102.9))
    if answered:
        heartbeat.probe_answered(at(101.0), at(102.91))
    soon = heartbeat.beat(at(102.9 + heartbeat.interval), NOTHING)
    assert (soon is Beat.SILENT) == (not answered)


def slow(heartbeat: Heartbeat, start: float) -> float:
    """Bytes arrive all the time but no answer; returns the seconds until that counted as too slow."""
    now = start
    while (verdict := heartbeat.beat(at(now), now - 0.1)) is not Beat.SLOW:
        assert verdict in (Beat.WAIT, Beat.PROBE)
        if verdict is Beat.PROBE:
            heartbeat.probe_sent(at(now))
        now += heartbeat.interval
    return now - start


def test_bytes_without_an_answer_keep_the_connection_and_not_the_lease() -> None:
    heartbeat = attached()
    assert slow(heartbeat, 100.0) == pytest.approx(4 * T, abs=0.5)
    assert heartbeat.safe_until(at(124.0)) == pytest.approx(103.0)


def test_silence_is_noticed_a_sixth_of_the_timeout_after_the_last_bytes() -> None:
    heartbeat = attached()
    now = 100.0
    while heartbeat.beat(at(now), min(now, 103.0)) is not Beat.SILENT:
        now += heartbeat.interval
    assert now == pytest.approx(104.0)


def test_patience_with_a_slow_connection_doubles_even_if_probes_are_answered() -> None:
    heartbeat = attached()
    lasted = []
    now = 100.0
    for _ in range(4):
        heartbeat.attach(None, at(now), T)
        heartbeat.probe_answered(at(now), at(now))
        lasted.append(slow(heartbeat, now))
        heartbeat.detach()
        now += lasted[-1]
    assert lasted == pytest.approx([4 * T, 8 * T, 16 * T, 16 * T], abs=0.5)


def test_a_late_answer_does_not_shorten_the_lease() -> None:
    heartbeat = attached()
    heartbeat.probe_answered(at(105.0), at(105.1))
    heartbeat.probe_answered(at(101.0), at(105.2))
    heartbeat.detach()
    assert heartbeat.safe_until(at(105.2)) == pytest.approx(108.0)


def test_after_a_late_loop_the_lease_is_in_doubt_until_a_new_probe_is_answered() -> None:
    heartbeat = attached()
    assert heartbeat.beat(at(100.0), NOTHING) is Beat.PROBE
    heartbeat.probe_sent(at(100.0))
    woke = 100.0 + heartbeat.interval + 1.1
    assert heartbeat.safe_until(at(woke)) == 0.0  # before any beat has looked
    assert heartbeat.beat(at(woke), NOTHING) is Beat.DOUBT
    heartbeat.probe_answered(at(100.0), at(woke))
    assert heartbeat.safe_until(at(woke)) == 0.0
    heartbeat.probe_sent(at(woke))
    heartbeat.probe_answered(at(woke), at(woke + 0.01))
    assert heartbeat.safe_until(at(woke + 0.01)) == pytest.approx(woke + 3.0)


def test_a_slightly_late_loop_raises_no_doubt() -> None:
    heartbeat = attached()
    heartbeat.beat(at(100.0), NOTHING)
    late = 100.0 + heartbeat.interval + 0.9
    assert heartbeat.safe_until(at(late)) == pytest.approx(103.0)
    assert heartbeat.beat(at(late), NOTHING) is not Beat.DOUBT


def test_a_loop_that_was_suspended_gets_time_to_read_the_answers() -> None:
    heartbeat = attached()
    heartbeat.beat(at(100.0), NOTHING)
    assert heartbeat.beat(at(150.0), NOTHING) is Beat.DOUBT
    heartbeat.probe_sent(at(150.0))
    assert heartbeat.beat(at(150.0 + heartbeat.interval), NOTHING) is Beat.PROBE


@pytest.mark.parametrize("jump", [1.1, -1.1, 3600.0])
def test_after_clocks_disagreed_the_lease_is_in_doubt_until_a_new_probe_is_answered(jump: float) -> None:
    heartbeat = attached()
    heartbeat.beat(at(100.0), NOTHING)
    assert heartbeat.safe_until(at(100.2)) == pytest.approx(103.0)
    assert heartbeat.safe_until(at(100.2, jump)) == 0.0
    assert heartbeat.beat(at(100.25, jump), NOTHING) is Beat.DOUBT
    heartbeat.probe_answered(at(100.0), at(100.3, jump))
    assert heartbeat.safe_until(at(100.3, jump)) == 0.0
    heartbeat.probe_answered(at(100.25, jump), at(100.3, jump))
    assert heartbeat.safe_until(at(100.3, jump)) == pytest.approx(103.25)


def test_a_small_step_of_the_wall_clock_raises_no_doubt() -> None:
    heartbeat = attached()
    heartbeat.beat(at(100.0), NOTHING)
    assert heartbeat.safe_until(at(100.2, 0.9)) == pytest.approx(103.0)


def test_without_a_connection_no_beat_is_late() -> None:
    heartbeat = attached()
    heartbeat.detach()
    assert heartbeat.safe_until(at(102.9)) == pytest.approx(103.0)


def test_a_session_is_kept_for_a_whole_timeout_after_the_last_answer_even_in_doubt() -> None:
    """A promise made before the doubt stands: a worker that only has the time relies on it."""
    heartbeat = attached()
    heartbeat.probe_answered(at(101.0), at(101.1))
    assert heartbeat.beat(at(109.0), NOTHING) is Beat.DOUBT
    assert heartbeat.safe_until(at(109.0)) == 0.0
    assert heartbeat.kept_until == pytest.approx(101.0 + T)


def test_a_session_whose_beats_fail_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Callers that wait for the session would never return."""

    def fail(heartbeat: Heartbeat, now: Instant, arrived: float) -> Beat:
        raise ValueError("no beat")

    async def script(session: ZooKeeperSession) -> None:
        await anyio.sleep(session.timeout * 3)
        assert session.trusted()
        monkeypatch.setattr(Heartbeat, "beat", fail)
        with anyio.fail_after(1):
            await session.wait_expired()
        assert not session.trusted()
        with pytest.raises(SessionExpiredError, match="no beat"):
            await session.get("/")

    with structlog.testing.capture_logs() as logged:
        Clients().play(script)
    assert [each["event"] for each in logged if each["log_level"] == "error"] == ["session failed"]
