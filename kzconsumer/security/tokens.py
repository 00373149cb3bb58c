"""SASL with a token, the client's half: OAUTHBEARER (RFC 7628) and Kerberos; and a step of any exchange in a thread.

The token of OAUTHBEARER is in a file, or a command prints it.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Sequence
from concurrent.futures import Future
from threading import Thread
from typing import Any, Final

from kzconsumer.display import redacted_text
from kzconsumer.errors import ProtocolError, SecurityError
from kzconsumer.installation import pip_install
from kzconsumer.security.sasl import Exchange, Sasl
from kzconsumer.settings.layers import read_secret, reason_of
from kzconsumer.settings.sections import KerberosSettings, SaslSettings

COMMAND_LIMIT: Final = 20.0
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
    return Sasl("OAUTHBEARER", f"with {key}", lambda host: _oauth_exchange(settings, token), check)


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
                output, errors = running.communicate(timeout=COMMAND_LIMIT)
            except subprocess.TimeoutExpired:
                os.killpg(running.pid, signal.SIGKILL)
                raise SecurityError(f"token_command: {command[0]} did not end within {COMMAND_LIMIT:g} s") from None
    except OSError as error:
        raise SecurityError(f"token_command: {command[0]}: {error.strerror}") from None
    if running.returncode:
        lines = [line.strip() for line in errors.decode(errors="replace").splitlines() if line.strip()]
        last = f": {redacted_text(lines[-1])[:_SHOWN]}" if lines else ""
        raise SecurityError(f"token_command: {command[0]} ended with exit status {running.returncode}{last}")
    return output.strip()


def _oauth_exchange(settings: SaslSettings, token: bytes | None) -> Exchange:
    if (yield f"n,,\1auth=Bearer {token_of(settings, token)}\1\1".encode()):
        yield b"\1"  # the answer is a refusal, and the next one says why
    return None


# SASL GSSAPI with Kerberos 5 (RFC 4752): the client's half. The only user of gssapi.
#
# Tickets are got with a keytab, and again when half of their time is over, or are those of a ticket cache that
# `kinit` or another program renews.

_ERRORS: Final = -1765328384 & 0xFFFFFFFF
"""The first code of libkrb5's table `krb5`."""
_KDC: Final = "check the realm, [realms] and [domain_realm] in krb5.conf, and whether the KDC runs"
_CLOCK: Final = "check this machine's clock, the server's and the KDC's"
_OLD_KEY: Final = "check keytab: its key is not the principal's current one"
_CHECKS: Final = {
    6: "check principal and its realm, and whether the KDC has it",
    7: "check whether the KDC has a principal of that service and host: service_name, and the host's name",
    23: "check whether the principal's password has expired",
    24: _OLD_KEY,
    31: _OLD_KEY,
    32: "renew the ticket cache with kinit, or set keytab and principal",
    33: _CLOCK,
    37: _CLOCK,
    154: _KDC,
    156: _KDC,
    164: _KDC,
    230: _KDC,
}
"""By the code's distance from the first."""
_NO_KEY: Final = "check whether keytab has a key of principal (klist -k), the realm, and the clocks"
_NO_TICKET: Final = "check the ticket cache (klist): run kinit, set ticket_cache, or set keytab and principal"
_NO_LAYER: Final = 1


def kerberos(settings: KerberosSettings, where: str, faults: list[str]) -> Sasl:
    """Faults are added to `faults`, each line beginning with `where`."""
    try:
        import gssapi  # noqa: F401
    except ImportError as error:
        faults.append(f"{where} mechanism: GSSAPI needs gssapi ({error}): {pip_install('kerberos')}")
    principal, keytab, cache = settings.principal, settings.keytab, settings.ticket_cache
    store: dict[str, str] | None = None if cache is None else {"ccache": cache}
    if keytab is not None:
        # In memory, shared by all connections. A replaced keytab begins another.
        store = {"client_keytab": keytab, "ccache": f"MEMORY:kzconsumer-{principal}-{_changed(keytab, where, faults)}"}
        if cache is not None:
            faults.append(f"{where} ticket_cache: cannot be given together with keytab")
        if principal is None:
            faults.append(f"{where} principal: missing, but keytab is given")

    def begin(host: str) -> Exchange:
        return _reporting(_kerberos_exchange(f"{settings.service_name}@{host}", principal, store), settings, host)

    identity = f"as {principal}" if principal is not None else "with the ticket cache"
    return Sasl("GSSAPI", identity, begin, f"{_CLOCK}, and whether the server's keytab has its current key")


def _changed(keytab: str, where: str, faults: list[str]) -> int:
    try:
        with open(keytab, "rb") as file:
            return os.stat(file.fileno()).st_mtime_ns
    except (OSError, ValueError) as error:
        faults.append(f"{where} keytab: {keytab} cannot be read: {reason_of(error)}")
        return 0


def _kerberos_exchange(service: str, principal: str | None, store: Any) -> Exchange:
    import gssapi

    mechanism = gssapi.MechType.kerberos
    name = None if principal is None else gssapi.Name(principal, gssapi.NameType.kerberos_principal)
    credentials = gssapi.Credentials(usage="initiate", name=name, mechs=[mechanism], store=store)
    target = gssapi.Name(service, gssapi.NameType.hostbased_service)
    context = gssapi.SecurityContext(name=target, creds=credentials, mech=mechanism, usage="initiate")
    token = context.step()
    while not context.complete:
        token = context.step((yield token or b""))
    offered = context.unwrap((yield token or b"")).message
    if len(offered) != 4:
        raise ProtocolError("GSSAPI: the server does not offer its security layers")
    if not offered[0] & _NO_LAYER:
        raise SecurityError("the server wants messages to be signed or encrypted by Kerberos; use TLS instead")
    return bytes(context.wrap(bytes((_NO_LAYER, 0, 0, 0)), False).message)


def _reporting(exchange: Exchange, settings: KerberosSettings, host: str) -> Exchange:
    """The same exchange; errors of Kerberos are SecurityErrors."""
    from gssapi.raw import GSSError

    try:
        return (yield from exchange)
    except GSSError as error:
        raise SecurityError(explain(error, settings, host)) from None


def explain(error: Any, settings: KerberosSettings, host: str) -> str:
    """One line, with what to check."""
    said = [*error.get_all_statuses(error.maj_code, True), *error.get_all_statuses(error.min_code, False)]
    reason = next((each for each in reversed(said) if each and each != "Unknown error"), "no reason")
    otherwise = _NO_KEY if settings.keytab is not None else _NO_TICKET
    check = _CHECKS.get((error.min_code & 0xFFFFFFFF) - _ERRORS, otherwise)
    return f"{reason} (for {settings.service_name}/{host}): {check}"


async def next_token(exchange: Exchange, answer: bytes | None) -> tuple[bytes | None, bool]:
    """The token to send, if any, and whether the exchange goes on after it. The first has no `answer`."""
    # In a thread: Kerberos asks a KDC, a token may come from a command, SCRAM computes for a while. The end of the
    # process does not wait for one whose caller was cancelled.
    step: Future[tuple[bytes | None, bool]] = Future()
    step.set_running_or_notify_cancel()
    Thread(target=_run, args=(step, exchange, answer), name="SASL", daemon=True).start()
    return await asyncio.wrap_future(step)


def _run(step: Future[tuple[bytes | None, bool]], exchange: Exchange, answer: bytes | None) -> None:
    try:
        step.set_result(_next(exchange, answer))
    except Exception as error:
        step.set_exception(error)


def _next(exchange: Exchange, answer: bytes | None) -> tuple[bytes | None, bool]:
    try:
        return (next(exchange) if answer is None else exchange.send(answer)), True
    except StopIteration as end:
        return end.value, False
