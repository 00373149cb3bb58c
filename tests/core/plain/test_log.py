"""Log lines: JSON unless standard error is a terminal, for our loggers and those of libraries."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kzconsumer.logs.repeats import INTERVAL, MOST, Repeats, same
from kzconsumer.logs.setup import KINDS, OTHERS, Troubles
from tests.support.reachable import reachable
from tests.support.schedules import schedules

PROGRAM = """
import logging, sys, warnings, structlog
from kzconsumer.logs import setup as log
log.configure("info", sys.argv[1])
structlog.get_logger().debug("unseen")
structlog.get_logger().info("joined", group="orders", member="m-1")
logging.getLogger("some.library").warning("odd %s", "thing")
logging.getLogger("aiozk").info("chatter")
warnings.warn("old ways")
try:
    1 / 0
except ZeroDivisionError:
    structlog.get_logger().exception("failed")
"""


def output(format: str) -> str:
    """What the program writes to standard error; nothing may be written to standard output."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, format], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == ""
    return done.stderr


def test_json_when_standard_error_is_no_terminal() -> None:
    lines = [json.loads(line) for line in output("auto").splitlines()]
    joined, library, warned, failed = lines
    assert joined.pop("timestamp").endswith("Z")
    assert joined == {"event": "joined", "level": "info", "group": "orders", "member": "m-1"}
    assert (library["event"], library["level"]) == ("odd thing", "warning")
    assert "old ways" in warned["event"]
    assert failed["exception"].endswith("ZeroDivisionError: division by zero")


def test_readable_when_asked_for() -> None:
    text = output("console")
    assert "joined" in text
    assert "group=orders" in text
    assert "odd thing" in text
    assert "unseen" not in text
    assert "chatter" not in text
    assert "\x1b[" not in text


REPLACED = """
import io, sys, structlog
from kzconsumer.logs import setup as log
log.configure('info', 'json')
structlog.get_logger("kzconsumer").info("before")
structlog.get_logger("kzconsumer").debug("unseen")
first, sys.stderr = sys.stderr, io.StringIO()
first.close()
structlog.get_logger("kzconsumer").info("after")
sys.stdout.write(sys.stderr.getvalue())
"""


def test_lines_go_to_the_current_standard_error() -> None:
    """Standard error may be replaced and the old one closed after the set-up: a line must not raise because of that."""
    command = [sys.executable, "-c", REPLACED]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert "after" in done.stdout, done.stderr
    assert "before" in done.stderr
    assert "unseen" not in done.stderr


def test_lines_as_errors_are_reported() -> None:
    joined, library, warned, *failed = output("line").splitlines()
    assert joined == "kzconsumer: joined: group orders, member m-1"
    assert library == "kzconsumer: odd thing"
    assert "old ways" in warned
    assert "kzconsumer: failed" in failed
    assert failed[-1] == "ZeroDivisionError: division by zero"


REPEATED = """
import structlog
from kzconsumer.logs import setup as log
log.configure("info", "json")
events = structlog.get_logger("kzconsumer")
for number in range(3):
    events.warning("connection lost", host="zk1", reason=f"silent for {number}.2 s")
    events.warning("connection lost", host=f"zk{number + 2}", reason="closed")
    events.error("records are lost", topic="t")
    events.error("commit failed", reason="no", again=True)
    events.info("progress", owned=1)
log.finish()
"""


def test_repeats_are_counted_and_errors_are_always_logged() -> None:
    done = subprocess.run([sys.executable, "-c", REPEATED], capture_output=True, text=True, check=True, timeout=60)
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    output = [(line["event"], line.get("host"), line.get("left_out")) for line in lines]
    assert output.count(("connection lost", "zk1", None)) == 1
    assert output[-2:] == [("connection lost", "zk1", 1), ("commit failed", None, 1)], "the last of each"
    assert [output.count(("connection lost", f"zk{n}", None)) for n in (2, 3, 4)] == [1, 1, 1], "other hosts are others"
    assert lines[-2]["reason"] == "silent for 2.2 s"
    assert output.count(("records are lost", None, None)) == 3
    assert output.count(("commit failed", None, None)) == 1
    assert output.count(("progress", None, None)) == 3
    assert all("again" not in line for line in lines)


WITH_SECRETS = """
import structlog, logging
from kzconsumer.logs import setup as log
{set_up}
def connect(password):
    local = [password]
    raise OSError("the server refuses")
try:
    connect("PLAN" + "TED")
except OSError:
    structlog.get_logger("kzconsumer").exception("failed", again=True)
    logging.getLogger("some.library").exception("failed, too")
"""


@pytest.mark.parametrize("set_up", ["log.configure('info', 'json')", "log.configure('info', 'console')"])
def test_tracebacks_are_without_the_values_of_variables(set_up: str) -> None:
    program = WITH_SECRETS.format(set_up=set_up)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert "OSError: the server refuses" in done.stderr
    assert "PLANTED" not in done.stderr
    assert "again" not in done.stderr


HOSTILE = """
import structlog
from kzconsumer.logs import setup as log
{set_up}
reason = "no\\nkzconsumer: all is well\\r\\x9b31m \u00e4"
structlog.get_logger("kzconsumer").error("broker\\x1b[2J refuses", reason=reason)
"""


FORMATS = ("json", "console", "line")
SET_UPS = [f"log.configure('info', '{each}')" for each in FORMATS]


@pytest.mark.parametrize("set_up", SET_UPS)
def test_foreign_text_cannot_begin_a_line_or_control_the_terminal(set_up: str) -> None:
    program = HOSTILE.format(set_up=set_up)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stderr.count("\n") == 1
    output = done.stderr.rstrip("\n")
    assert "all is well" in output
    assert output.isprintable()
    assert "\u00e4" in output


def test_the_first_line_at_once_then_the_last_of_each_interval() -> None:
    repeats: Repeats[str] = Repeats()
    assert repeats.admit("key", "line 0", 0.0)
    assert [repeats.admit("key", f"line {n}", float(n)) for n in (1, 2, 3)] == [False] * 3
    assert repeats.overdue(INTERVAL - 0.1) == []
    assert repeats.overdue(INTERVAL) == [("line 3", 2)]
    assert not repeats.admit("key", "line 4", INTERVAL + 1), "still the same interval"
    assert repeats.overdue(2 * INTERVAL) == [("line 4", 0)]
    assert repeats.overdue(3 * INTERVAL) == []
    assert repeats.admit("key", "line 5", 3 * INTERVAL + 1), "it was over"


@given(schedules(st.tuples(st.sampled_from("abc"), st.floats(0, 40)), 60))
def test_every_line_is_reported_or_counted(lines: list[tuple[str, float]]) -> None:
    repeats: Repeats[str] = Repeats()
    now, output = 0.0, 0
    for key, pause in lines:
        now += pause
        output += sum(1 + left_out for _, left_out in repeats.overdue(now))
        output += repeats.admit(key, key, now)
    output += sum(1 + left_out for _, left_out in repeats.overdue(now, 0.0))
    assert output == len(lines)


def test_memory_is_bounded_and_no_count_is_lost() -> None:
    repeats: Repeats[int] = Repeats()
    output = 0
    for n in range(MOST + 50):
        output += sum(1 + left_out for _, left_out in repeats.overdue(0.0))
        output += repeats.admit(n, n, 0.0) + repeats.admit(n, n, 0.0)
    assert len(reachable(repeats)) < 3 * MOST
    output += sum(1 + left_out for _, left_out in repeats.overdue(0.0, 0.0))
    assert output == 2 * (MOST + 50)


def test_which_lines_are_repeats() -> None:
    line = {"event": "connection lost", "host": "zk1:2181", "partition": 3, "reason": "no probe answered for 2.1 s"}
    later = {**line, "reason": "no probe answered for 2.4 s", "timestamp": "12:00", "level": "warning"}
    assert same(line) == same(later)
    assert same(line) != same({**line, "partition": 4})
    assert same(line) != same({**line, "reason": "closed by the server"})


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
