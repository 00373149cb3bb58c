"""Log lines: JSON where nobody reads along, ours and the libraries' alike."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

PROGRAM = """
import logging, sys, warnings, structlog
from kzconsumer import log
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


def told(format: str) -> str:
    """What the program writes to standard error; nothing may go to standard output."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, format], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == ""
    return done.stderr


def test_json_when_standard_error_is_no_terminal() -> None:
    lines = [json.loads(line) for line in told("auto").splitlines()]
    joined, library, warned, failed = lines
    assert joined.pop("timestamp").endswith("Z")
    assert joined == {"event": "joined", "level": "info", "group": "orders", "member": "m-1"}
    assert (library["event"], library["level"]) == ("odd thing", "warning")
    assert "old ways" in warned["event"]
    assert failed["exception"].endswith("ZeroDivisionError: division by zero")


def test_readable_when_asked_for() -> None:
    text = told("console")
    assert "joined" in text
    assert "group=orders" in text
    assert "odd thing" in text
    assert "unseen" not in text
    assert "chatter" not in text
    assert "\x1b[" not in text


REPLACED = """
import io, sys, structlog
from kzconsumer import log
{set_up}
structlog.get_logger("kzconsumer").info("before")
structlog.get_logger("kzconsumer").debug("unseen")
first, sys.stderr = sys.stderr, io.StringIO()
first.close()
structlog.get_logger("kzconsumer").info("after")
sys.stdout.write(sys.stderr.getvalue())
"""


@pytest.mark.parametrize("set_up", ["log.configure('info', 'json')", "log.to_standard_error('info')"])
def test_lines_go_to_the_stream_of_the_moment(set_up: str) -> None:
    """Standard error may be replaced, and the old one closed, after the set-up: a line must not raise for that."""
    command = [sys.executable, "-c", REPLACED.format(set_up=set_up)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert "after" in done.stdout, done.stderr
    assert "before" in done.stderr
    assert "unseen" not in done.stderr


def test_lines_as_errors_are_told() -> None:
    joined, library, warned, *failed = told("line").splitlines()
    assert joined == "kzconsumer: joined: group orders, member m-1"
    assert library == "kzconsumer: odd thing"
    assert "old ways" in warned
    assert "kzconsumer: failed" in failed
    assert failed[-1] == "ZeroDivisionError: division by zero"
