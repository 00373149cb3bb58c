"""SASL OAUTHBEARER (RFC 7628): the client's half. The token is in a file, or a command prints it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Sequence
from typing import Final

from kzconsumer.errors import SecurityError
from kzconsumer.redaction import redacted_text
from kzconsumer.security.exchange import Exchange, Sasl
from kzconsumer.settings.secret import read_secret
from kzconsumer.settings.sections import SaslSettings

_COMMAND_LIMIT: Final = 20.0
"""Seconds."""
_TOKEN: Final = re.compile(rb"[A-Za-z0-9._~+/-]+=*")
_SHOWN: Final = 200


def oauth_bearer(settings: SaslSettings, where: str, faults: list[str]) -> Sasl:
    """Faults are added to `faults`, each line beginning with `where`."""
    command, token = settings.token_command, None
    if settings.token_file is not None and command:
        faults.append(f"{where} token_command: cannot be given together with token_file")
    elif settings.token_file is not None:
        token = read_secret(settings.token_file, None, "token", where, faults)
    elif not command:
        faults.append(f"{where} token_file: missing (or token_command)")
    elif shutil.which(command[0]) is None:
        faults.append(f"{where} token_command: {command[0]} is not a program that can be run")
    key = "token_command" if command else "token_file"
    check = f"check whether the token has expired, and its issuer ({key})"
    return Sasl("OAUTHBEARER", f"with {key}", lambda host: _exchange(settings, token), check)


def token_of(settings: SaslSettings, token: bytes | None = None) -> str:
    """Runs the command, or reads the file unless its content is given. Blocks. Raises SecurityError."""
    faults: list[str] = []
    if settings.token_command:
        token = _printed(settings.token_command)
    elif token is None:
        token = read_secret(settings.token_file, None, "token", "[brokers.sasl]", faults) or b""
    if not _TOKEN.fullmatch(token):
        key = "token_command" if settings.token_command else "token_file"
        raise SecurityError("; ".join(faults) or f"{key}: has no token as RFC 6750 defines it")
    return token.decode()


def _printed(command: Sequence[str]) -> bytes:
    pipe = subprocess.PIPE
    try:
        # In a session of its own: what a script has started is ended with it.
        with subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, start_new_session=True
        ) as running:
            try:
                output, errors = running.communicate(timeout=_COMMAND_LIMIT)
            except subprocess.TimeoutExpired:
                os.killpg(running.pid, signal.SIGKILL)
                raise SecurityError(f"token_command: {command[0]} did not end within {_COMMAND_LIMIT:g} s") from None
    except OSError as error:
        raise SecurityError(f"token_command: {command[0]}: {error.strerror}") from None
    if running.returncode:
        lines = [line.strip() for line in errors.decode(errors="replace").splitlines() if line.strip()]
        last = f": {redacted_text(lines[-1])[:_SHOWN]}" if lines else ""
        raise SecurityError(f"token_command: {command[0]} ended with exit status {running.returncode}{last}")
    return output.strip()


def _exchange(settings: SaslSettings, token: bytes | None) -> Exchange:
    if (yield f"n,,\1auth=Bearer {token_of(settings, token)}\1\1".encode()):
        yield b"\1"  # the answer is a refusal, and the next one says why
    return None
