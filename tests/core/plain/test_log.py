"""Log lines: JSON unless standard error is a terminal, for our loggers and those of libraries."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

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
