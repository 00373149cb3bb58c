"""Commands that print a token: those that hang, and those that print a secret as an error."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from kzconsumer.errors import SecurityError
from kzconsumer.security import tokens
from kzconsumer.security.tokens import oauth_bearer, token_of
from kzconsumer.settings.sections import SaslSettings

HANGS = """
import anyio
from kzconsumer.security.tokens import next_token

def exchange():
    import time
    time.sleep(60)
    yield b""

async def main():
    with anyio.move_on_after(0.1):
        await next_token(exchange(), None)
    print("ended")

anyio.run(main)
"""


def of_shell(script: str) -> SaslSettings:
    return SaslSettings(mechanism="OAUTHBEARER", token_command=("sh", "-c", script))


def test_what_a_command_has_started_is_ended_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "COMMAND_LIMIT", 0.5)
    with pytest.raises(SecurityError, match=r"token_command: sh did not end within 0\.5 s"):
        token_of(of_shell(f"(sleep 1; touch {tmp_path}/lives) & wait"))
    time.sleep(1.2)
    assert not (tmp_path / "lives").exists()


def test_the_first_word_of_a_command_is_the_program() -> None:
    for command, is_there in ((("sh", "-c", "no such"), True), (("no-such-program", "sh"), False)):
        faults: list[str] = []
        oauth_bearer(SaslSettings(mechanism="OAUTHBEARER", token_command=command), "[brokers.sasl]", faults)
        missing = "[brokers.sasl] token_command: no-such-program is not a program that can be run"
        assert faults == ([] if is_there else [missing])


@pytest.mark.parametrize(
    "printed",
    ["< Authorization: Bearer 2YotnFZFEjr1zCsicMWpAA", '{"access_token": "eyJhbGciOiJub25lIn0.eyJzdWIiOiJtZSJ9.c2ln"}'],
)
def test_a_token_in_a_commands_error_is_hidden(printed: str) -> None:
    with pytest.raises(SecurityError) as caught:
        token_of(of_shell(f"echo '{printed}' >&2; exit 1"))
    assert "ended with exit status 1: " in str(caught.value)
    assert "(hidden)" in str(caught.value)
    assert not any(secret in str(caught.value) for secret in ("2YotnFZFEjr1zCsicMWpAA", "eyJ"))


def test_a_process_ends_although_an_exchange_that_was_given_up_still_blocks() -> None:
    done = subprocess.run([sys.executable, "-c", HANGS], capture_output=True, text=True, timeout=30)
    assert (done.stdout, done.stderr, done.returncode) == ("ended\n", "", 0)
