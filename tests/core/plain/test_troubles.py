"""Warnings and errors by kind."""

from __future__ import annotations

from kzconsumer.logs.setup import KINDS, OTHERS, Troubles


def test_lines_are_counted_by_kind_and_the_last_text_is_kept() -> None:
    troubles = Troubles()
    for number in range(3):
        line = {"event": "commit failed", "level": "error", "reason": f"no {number}"}
        assert troubles(None, "error", line) is line, "the line is passed on"
    troubles(None, "info", {"event": "rebalanced", "level": "info"})
    (found,) = troubles.all()
    assert (found.event, found.level, found.count, found.reason) == ("commit failed", "error", 3, "no 2")
    assert found.first <= found.last


def test_memory_is_bounded() -> None:
    troubles = Troubles()
    for number in range(KINDS * 3):
        troubles(None, "warning", {"event": f"event {number}", "level": "warning"})
    found = {trouble.event: trouble.count for trouble in troubles.all()}
    assert len(found) <= KINDS + 1
    assert found[OTHERS] == KINDS * 2


def test_no_secret_is_kept() -> None:
    troubles = Troubles()
    reason = "connect to jdbc://me:do-not-tell@db?password=do-not-tell"
    troubles(None, "error", {"event": "e", "level": "error", "reason": reason})
    assert "do-not-tell" not in repr(troubles.all())
