"""Lines in a journal, received by a real datagram socket, including those too large for a datagram."""

from __future__ import annotations

import array
import logging
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from kzconsumer.errors import ConfigError
from kzconsumer.logs import setup

Fields = dict[str, str]


class Received:
    """The journal's end of the socket."""

    def __init__(self, listening: socket.socket) -> None:
        self._socket = listening

    def next(self) -> Fields:
        content, ancillary, _, _ = self._socket.recvmsg(1 << 20, socket.CMSG_SPACE(4))
        for _, kind, data in ancillary:
            assert kind == socket.SCM_RIGHTS
            (descriptor,) = array.array("i", data)
            with os.fdopen(descriptor, "rb") as file:
                file.seek(0)
                content = file.read()
        return parsed(content)


def parsed(content: bytes) -> Fields:
    """https://systemd.io/JOURNAL_NATIVE_PROTOCOL"""
    found: Fields = {}
    while content:
        line, _, content = content.partition(b"\n")
        key, equals, value = line.partition(b"=")
        if not equals:
            (size,) = struct.unpack_from("<Q", content)
            value, content = content[8 : 8 + size], content[8 + size + 1 :]
        found[key.decode()] = value.decode()
    return found


@pytest.fixture
def received(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Received]:
    path = tmp_path / "socket"
    handlers = logging.getLogger().handlers[:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(path))
        listening.settimeout(10)
        monkeypatch.setattr(setup, "SOCKET", path)
        setup.configure("info", "journald")
        yield Received(listening)
    logging.captureWarnings(False)
    logging.getLogger().handlers[:] = handlers


def test_every_key_is_a_field(received: Received) -> None:
    structlog.get_logger("kzconsumer").warning("partition lost", topic="t", partition=3, reason="two\nlines", owns=[1])
    assert received.next() == {
        "MESSAGE": "partition lost topic=t partition=3 reason=two\nlines owns=[1]",
        "PRIORITY": "4",
        "SYSLOG_IDENTIFIER": "kzconsumer",
        "KZCONSUMER_EVENT": "partition lost",
        "KZCONSUMER_TOPIC": "t",
        "KZCONSUMER_PARTITION": "3",
        "KZCONSUMER_REASON": "two\nlines",
        "KZCONSUMER_OWNS": "[1]",
    }
    logging.getLogger("some.library").error("odd %s", "thing")
    library = received.next()
    assert (library["MESSAGE"], library["PRIORITY"]) == ("odd thing", "3")


def test_a_message_larger_than_a_datagram_arrives_whole(received: Received) -> None:
    large = "x" * (4 << 20)
    try:
        raise ValueError(large)
    except ValueError:
        structlog.get_logger("kzconsumer").exception("failed", b=large)
    fields = received.next()
    assert fields["KZCONSUMER_B"] == large
    assert fields["MESSAGE"].endswith(f"ValueError: {large}")
    assert fields["PRIORITY"] == "3"


def test_without_a_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(setup, "SOCKET", tmp_path / "none")
    with pytest.raises(ConfigError, match=r'\[log\] format: "journald", but there is no journal here'):
        setup.configure("info", "journald")
    setup.Journal().msg(MESSAGE="it went away")
    assert capsys.readouterr().err == "it went away (not in the journal: No such file or directory)\n"
