"""The notify protocol, on a real datagram socket."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path

import pytest

from kzconsumer.service.systemd import Manager, datagram
from tests.support.processes import wait_until
from tests.support.service_manager import ServiceManager, service_manager


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "notify")


def got(manager: ServiceManager, number: int) -> list[dict[str, str]]:
    assert wait_until(lambda: len(manager.messages) >= number, 10)
    return [each.fields for each in manager.messages]


@pytest.mark.parametrize("abstract", [False, True])
def test_reported_fields_arrive(path: str, abstract: bool) -> None:
    address = f"@{path}" if abstract else path
    environment = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "2500000", "WATCHDOG_PID": str(os.getpid()), "HOME": "/"}
    with service_manager(address) as listening:
        manager = Manager.from_environment(environment, os.getpid())
        manager.send(READY=1, STATUS="two\nlines  of it")
        manager.send(WATCHDOG=1)
        assert got(listening, 2) == [{"READY": "1", "STATUS": "two lines of it"}, {"WATCHDOG": "1"}]
        assert {each.pid for each in listening.messages} == {os.getpid()}
        manager.close()
    assert environment == {"HOME": "/"}, "child processes do not inherit the variables"


def test_a_datagram_consists_of_lines() -> None:
    assert datagram({"A": 1, "B": "x y"}) == b"A=1\nB=x y"


@pytest.mark.parametrize(
    ("environment", "watchdog"),
    [
        ({"WATCHDOG_USEC": "2500000"}, 2.5),
        ({"WATCHDOG_USEC": "2500000", "WATCHDOG_PID": "42"}, 2.5),
        ({"WATCHDOG_USEC": "2500000", "WATCHDOG_PID": "43"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "-3"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({}, None),
    ],
)
def test_the_watchdog_applies_to_the_process_it_names(environment: dict[str, str], watchdog: float | None) -> None:
    assert Manager.from_environment({"NOTIFY_SOCKET": "/run/x", **environment}, 42).watchdog == watchdog
    assert Manager.from_environment({**environment}, 42).watchdog is None


@pytest.mark.parametrize("address", [None, "", "vsock:2:1234", "relative/path"])
def test_without_a_socket_nothing_happens(address: str | None) -> None:
    manager = Manager.from_environment({} if address is None else {"NOTIFY_SOCKET": address}, 42)
    assert not manager.listens
    manager.send(READY=1)


def test_fields_that_could_not_be_sent_are_sent_with_the_next(path: str) -> None:
    """If the socket is missing or full, the newest value of each field is kept, and READY is never lost."""
    manager = Manager(path, None)
    manager.send(READY=1, STATUS="first")
    with service_manager(path) as listening:
        manager.send(STATUS="second")
        assert got(listening, 1) == [{"READY": "1", "STATUS": "second"}]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as full:
        full.bind(path)
        for number in range(5000):
            manager.send(STATUS=str(number))  # never blocks
        manager.send(STOPPING=1)
        full.setblocking(False)
        seen = b""
        with contextlib.suppress(BlockingIOError):
            while True:
                seen = full.recv(65536)
        assert b"STOPPING" not in seen
        manager.send(STATUS="last")
        assert full.recv(65536) == b"STATUS=last\nSTOPPING=1"
    manager.close()
