"""Logging of the library. Without a structlog configuration, events go to standard loggers, and nothing is set up."""

from __future__ import annotations

import io
import logging
import subprocess
import sys
from collections.abc import Iterator

import anyio
import anyio.lowlevel
import pytest
import structlog
from structlog.testing import capture_logs

from kzconsumer.logs.logger import facts, get_logger


@pytest.fixture
def unconfigured() -> Iterator[None]:
    before = structlog.get_config() if structlog.is_configured() else None
    structlog.reset_defaults()
    yield
    structlog.reset_defaults()
    if before is not None:
        structlog.configure(**before)


def test_events_go_to_the_standard_logger(unconfigured: None, caplog: pytest.LogCaptureFixture) -> None:
    log = get_logger("kzconsumer.group")
    with caplog.at_level(logging.INFO, logger="kzconsumer"):
        log.debug("unseen")
        log.info("partition revoked", topic="orders", partition=0, again=True)
        log.info("commit failed", reason="no quorum\n")
        try:
            raise OSError("gone")
        except OSError:
            log.exception("failed")
    revoked, refused, failed = caplog.records
    assert (revoked.name, revoked.levelname) == ("kzconsumer.group", "INFO")
    assert revoked.getMessage() == "partition revoked topic=orders partition=0"
    assert revoked.__dict__["fields"] == {"topic": "orders", "partition": 0}
    assert revoked.funcName == "test_events_go_to_the_standard_logger"
    assert refused.getMessage() == "commit failed reason='no quorum\\n'"
    assert failed.getMessage().startswith("failed\nTraceback (most recent call last):\n")
    assert failed.getMessage().endswith("OSError: gone")


def test_secrets_are_not_logged(unconfigured: None, caplog: pytest.LogCaptureFixture) -> None:
    url = "jdbc:postgresql://u:planted@host/db?password=planted"
    with caplog.at_level(logging.INFO, logger="kzconsumer"):
        get_logger("kzconsumer").warning("refused", url=url, options={"password": "planted"})
        try:
            raise OSError(f"{url} refuses")
        except OSError as error:
            get_logger("kzconsumer").error("refused", exc_info=error)
    assert caplog.text.count("host") == 2
    assert "planted" not in caplog.text + str([record.__dict__["fields"] for record in caplog.records])


async def test_lines_of_an_application_with_two_members_have_no_context_of_either(
    unconfigured: None, caplog: pytest.LogCaptureFixture
) -> None:
    log = get_logger("kzconsumer")

    async def member(group: str) -> None:
        facts().update(group=group)
        await anyio.lowlevel.checkpoint()
        log.warning("progress", of=group)

    with caplog.at_level(logging.INFO, logger="kzconsumer"):
        log.warning("a line of the application")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(member, "a")
            tasks.start_soon(member, "b")
    fields = [record.__dict__["fields"] for record in caplog.records]
    assert fields == [{}, {"group": "a", "of": "a"}, {"group": "b", "of": "b"}]


def test_an_applications_structlog_is_used() -> None:
    with capture_logs() as events:
        get_logger("kzconsumer").warning("partition lost", topic="orders")
    assert events == [{"event": "partition lost", "log_level": "warning", "topic": "orders"}]


async def test_an_applications_structlog_gets_whose_line_it_is_and_no_secrets() -> None:
    url = "jdbc:postgresql://u:planted@host/db?password=planted"

    async def member() -> None:
        facts().update(group="orders", member="m")
        get_logger("kzconsumer").warning("refused", url=url, options={"password": "planted"}, again=True)
        try:
            raise OSError(f"{url} refuses")
        except OSError:
            get_logger("kzconsumer").exception("failed", member="another")

    with capture_logs() as events:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(member)
    refused, failed = events
    assert (refused["group"], refused["member"], failed["member"]) == ("orders", "m", "another")
    assert set(refused) == {"event", "log_level", "group", "member", "url", "options"}
    assert failed["exception"].startswith("Traceback (most recent call last):\n")
    assert "host" in failed["exception"]
    assert "planted" not in str(events)


def test_a_line_that_an_applications_structlog_cannot_take_goes_to_the_standard_logger(
    unconfigured: None, caplog: pytest.LogCaptureFixture
) -> None:
    """Here its factory takes no name. The error would end the task that logs, and with it the session."""
    structlog.configure(logger_factory=lambda: structlog.PrintLogger())
    with caplog.at_level(logging.INFO, logger="kzconsumer"):
        get_logger("kzconsumer").warning("partition lost", topic="orders")
    (line,) = caplog.records
    assert line.getMessage().startswith('partition lost topic=orders structlog="TypeError(')


CONNECTED = """
import asyncio, logging, sys
import structlog
import kzconsumer

before = logging.getLogger().handlers, logging.getLogger("kzconsumer").handlers

async def main():
    async with kzconsumer.connect(zookeeper="127.0.0.1:1", group="orders") as consumer:
        joining = asyncio.create_task(consumer.create_message_streams({"orders": 1}))
        await asyncio.sleep(0.5)
        await consumer.leave()
        await joining

asyncio.run(main())
assert not structlog.is_configured()
assert (logging.getLogger().handlers, logging.getLogger("kzconsumer").handlers) == before
"""


def test_connect_sets_up_no_logging_and_prints_nothing() -> None:
    """Without any handler, warnings reach standard error through the standard library's last resort."""
    done = subprocess.run([sys.executable, "-c", CONNECTED], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert "127.0.0.1:1" in done.stderr


def test_a_handler_gets_the_levels_that_it_sets(unconfigured: None) -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    logger = logging.getLogger("kzconsumer")
    logger.addHandler(handler)
    try:
        get_logger("kzconsumer.zookeeper").error("session expired", session="0x1")
    finally:
        logger.removeHandler(handler)
    assert stream.getvalue() == "session expired session=0x1\n"
