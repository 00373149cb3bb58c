"""Secrets read from files: one line end is not part of the secret."""

from __future__ import annotations

import os
from pathlib import Path
from threading import Thread

import pytest

from kzconsumer.settings.layers import read_secret


@pytest.mark.parametrize(
    ("content", "secret"),
    [
        (b"hunter2", b"hunter2"),
        (b"hunter2\n", b"hunter2"),
        (b"hunter2\r\n", b"hunter2"),
        (b" hunter 2 \t\n", b" hunter 2 \t"),
        (b"two\nlines\n", b"two\nlines"),
        (b"hunter2\n\n", b"hunter2\n"),
        (b"\xff\x00", b"\xff\x00"),
    ],
)
def test_one_line_end_is_removed(content: bytes, secret: bytes, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_bytes(content)
    faults: list[str] = []
    assert read_secret(str(file), None, "password", "[brokers.sasl]", faults) == secret
    assert faults == []


@pytest.mark.parametrize("content", [b"", b"\n", b"\r\n"])
def test_an_empty_secret_is_a_fault(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_bytes(content)
    faults: list[str] = []
    assert read_secret(str(file), None, "password", "[brokers.sasl]", faults) is None
    assert faults == ["[brokers.sasl] password_file: is empty"]


@pytest.mark.parametrize(("mode", "accepted"), [(0o600, True), (0o644, True), (0o666, False), (0o602, False)])
def test_a_secret_that_everybody_may_write_is_a_fault(mode: int, accepted: bool, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_bytes(b"hunter2")
    file.chmod(mode)
    faults: list[str] = []
    assert read_secret(str(file), None, "password", "[brokers.sasl]", faults) == (b"hunter2" if accepted else None)
    assert ("everybody may write it" in "".join(faults)) == (not accepted)


def test_a_secret_that_is_replaced_while_it_is_read_is_one_of_both(tmp_path: Path) -> None:
    """A pipe ends when its writer closes it: by then its name is gone."""
    file = tmp_path / "secret"
    os.mkfifo(file, 0o600)

    def write() -> None:
        with file.open("wb") as opened:
            opened.write(b"hunter2")
            file.unlink()

    writer = Thread(target=write)
    writer.start()
    faults: list[str] = []
    assert read_secret(str(file), None, "password", "[brokers.sasl]", faults) == b"hunter2"
    writer.join()
    assert faults == []


@pytest.mark.parametrize("variable", ["hunter-2", "p@ss", "2fast", "two words", ""])
def test_a_password_instead_of_a_variable_is_refused_and_not_shown(variable: str) -> None:
    faults: list[str] = []
    assert read_secret(None, variable, "password", "[brokers.sasl]", faults) is None
    assert faults == [
        "[brokers.sasl] password_env: is not the name of an environment variable; a password must not be written here"
    ]
