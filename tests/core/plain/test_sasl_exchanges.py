"""What clients send with tokens and tickets, and what they say if they cannot: SASL OAUTHBEARER and GSSAPI.

Kerberos itself is tested with a KDC (servers/test_kerberos.py). These tests pass the server's messages to its library.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pytest

from kzconsumer.errors import ProtocolError, SecurityError
from kzconsumer.security.tokens import kerberos, oauth_bearer, token_of
from kzconsumer.settings.sections import SaslSettings

gssapi = pytest.importorskip("gssapi")


def exchanged(begun: Any, *answers: bytes) -> list[bytes | None]:
    """What is sent, first and after each answer. None at the end: nothing."""
    sent: list[bytes | None] = [next(begun)]
    for answer in answers:
        try:
            sent.append(begun.send(answer))
        except StopIteration as end:
            sent.append(end.value)
    return sent


TOKEN = "abc.DEF-1_2~3+4/5=="


def test_a_token_is_sent_and_a_refusal_is_acknowledged(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    settings, faults = SaslSettings(mechanism="OAUTHBEARER", token_file=str(file)), list[str]()
    sasl = oauth_bearer(settings, "[brokers.sasl]", faults)
    assert (faults, str(sasl)) == ([], "OAUTHBEARER with token_file")
    assert sasl.check == "check whether the token has expired, and its issuer (token_file)"
    hello = f"n,,\1auth=Bearer {TOKEN}\1\1".encode()
    assert exchanged(sasl.begin("h"), b"") == [hello, None]
    assert exchanged(sasl.begin("h"), b'{"status":"invalid_token"}', b"") == [hello, b"\1", None]
    file.write_text("another")
    assert exchanged(sasl.begin("h")) == [hello], "read as the settings were"
    assert token_of(settings) == "another"


@pytest.mark.parametrize("content", ["two words", "", "a\nb", "ä"])
def test_what_is_no_token(tmp_path: Path, content: str) -> None:
    file = tmp_path / "token"
    file.write_text(content)
    settings = SaslSettings(mechanism="OAUTHBEARER", token_file=str(file))
    none = "has no token as RFC 6750 defines it"
    with pytest.raises(SecurityError) as raised:
        token_of(settings)
    assert str(raised.value) == (f"token_file: {none}" if content else "[brokers.sasl] token_file: is empty")
    with pytest.raises(SecurityError) as raised:
        token_of(SaslSettings(mechanism="OAUTHBEARER", token_command=("printf", content)))
    assert str(raised.value) == f"token_command: {none}"


def test_a_token_file_that_is_gone_and_a_command_that_cannot_be_run(tmp_path: Path) -> None:
    gone = SaslSettings(mechanism="OAUTHBEARER", token_file=str(tmp_path / "gone"))
    with pytest.raises(
        SecurityError, match=r"^\[brokers.sasl\] token_file: cannot be read: No such file or directory$"
    ):
        token_of(gone)
    with pytest.raises(SecurityError, match=rf"^token_command: {tmp_path}: Permission denied$"):
        token_of(SaslSettings(mechanism="OAUTHBEARER", token_command=(str(tmp_path),)))


class Library:
    """Kerberos: a context is complete after so many steps. What it wraps begins with `wrapped:`."""

    def __init__(self, steps: int, error: Exception | None = None) -> None:
        self.steps, self.error = steps, error
        self.given: list[tuple[str, Any]] = []
        self.seen: list[bytes | None] = []

    def credentials(self, **given: Any) -> Self:
        self.given.append(("credentials", given))
        return self

    def context(self, **given: Any) -> Self:
        self.given.append(("context", given))
        return self

    @property
    def complete(self) -> bool:
        return len(self.seen) >= self.steps

    def step(self, token: bytes | None = None) -> bytes | None:
        if self.error is not None:
            raise self.error
        self.seen.append(token)
        return None if self.complete and self.steps == 2 else b"step %d" % len(self.seen)

    def unwrap(self, message: bytes) -> Any:
        return SimpleNamespace(message=message.removeprefix(b"wrapped:"))

    def wrap(self, message: bytes, encrypt: bool) -> Any:
        assert encrypt is False
        return SimpleNamespace(message=b"wrapped:" + message)


def begun(library: Library, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> Any:
    monkeypatch.setattr(gssapi, "Credentials", library.credentials)
    monkeypatch.setattr(gssapi, "SecurityContext", library.context)
    faults: list[str] = []
    sasl = kerberos(SaslSettings(mechanism="GSSAPI", **settings), "[brokers.sasl]", faults)
    assert faults == []
    return sasl.begin("kafka1")


@pytest.mark.parametrize(
    ("steps", "answers", "sent"),
    [
        (1, [b"wrapped:\7\0\0\0"], [b"step 1", b"wrapped:\1\0\0\0"]),
        (2, [b"mutual", b"wrapped:\1\0\1\0"], [b"step 1", b"", b"wrapped:\1\0\0\0"]),
        (3, [b"a", b"b", b"wrapped:\5\0\0\0"], [b"step 1", b"step 2", b"step 3", b"wrapped:\1\0\0\0"]),
    ],
)
def test_a_context_is_made_and_no_security_layer_chosen(
    monkeypatch: pytest.MonkeyPatch, steps: int, answers: list[bytes], sent: list[bytes]
) -> None:
    """RFC 4752, 3.1: the last message names the layer that was chosen, and no size."""
    library = Library(steps)
    assert exchanged(begun(library, monkeypatch, principal="me@R", ticket_cache="FILE:/c"), *answers) == sent
    assert library.seen == [None, *answers[:-1]]
    (_, credentials), (_, context) = library.given
    mechanism = gssapi.MechType.kerberos
    assert (str(credentials["name"]), credentials["usage"], credentials["mechs"], credentials["store"]) == (
        "me@R", "initiate", [mechanism], {"ccache": "FILE:/c"},
    )  # fmt: skip
    assert (str(context["name"]), context["usage"], context["mech"], context["creds"]) == (
        "kafka@kafka1", "initiate", mechanism, library,
    )  # fmt: skip


def test_tickets_of_the_default_cache_or_of_a_keytab(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    library = Library(1)
    exchanged(begun(library, monkeypatch, service_name="broker"))
    assert (library.given[0][1]["name"], library.given[0][1]["store"]) == (None, None)
    assert str(library.given[1][1]["name"]) == "broker@kafka1"
    keytab = tmp_path / "keytab"
    keytab.write_bytes(b"k")
    caches = []
    for content in (b"k", b"l"):
        keytab.write_bytes(content)
        library = Library(1)
        exchanged(begun(library, monkeypatch, principal="me", keytab=str(keytab)))
        store = library.given[0][1]["store"]
        assert store["client_keytab"] == str(keytab)
        caches.append(store["ccache"])
    assert all(each.startswith("MEMORY:kzconsumer-me-") for each in caches)


@pytest.mark.parametrize(
    ("offered", "error"),
    [
        (b"wrapped:\7\0\0", ProtocolError("GSSAPI: the server does not offer its security layers")),
        (b"wrapped:\7\0\0\0\0", ProtocolError("GSSAPI: the server does not offer its security layers")),
        (
            b"wrapped:\6\0\0\0",
            SecurityError("the server wants messages to be signed or encrypted by Kerberos; use TLS instead"),
        ),
    ],
)
def test_layers_that_are_not_offered(monkeypatch: pytest.MonkeyPatch, offered: bytes, error: Exception) -> None:
    with pytest.raises(type(error), match=f"^{error}$"):
        exchanged(begun(Library(1), monkeypatch), offered)


FAILED, KRB5 = 851968, -1765328384
"""GSS_S_FAILURE, and the first code of libkrb5's errors."""


@pytest.mark.parametrize("keytab", [False, True])
@pytest.mark.parametrize(
    ("code", "check"),
    [
        (6, "check principal and its realm"),
        (7, "check whether the KDC has a principal of that service and host"),
        (23, "check whether the principal's password has expired"),
        (24, "check keytab: its key"),
        (31, "check keytab: its key"),
        (32, "renew the ticket cache with kinit"),
        (33, "check this machine's clock"),
        (37, "check this machine's clock"),
        (154, "check the realm"),
        (156, "check the realm"),
        (164, "check the realm"),
        (230, "check the realm"),
        (1, None),
    ],
)
def test_each_failure_says_what_to_check(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, keytab: bool, code: int, check: str | None
) -> None:
    (tmp_path / "k").touch()
    settings = {"principal": "me", "keytab": str(tmp_path / "k")} if keytab else {}
    error = gssapi.raw.GSSError(FAILED, (KRB5 + code) & 0xFFFFFFFF)
    with pytest.raises(SecurityError) as raised:
        exchanged(begun(Library(1, error), monkeypatch, **settings))
    reason, _, rest = str(raised.value).partition(" (for kafka/kafka1): ")
    assert reason not in ("", "no reason", "Unknown error")
    other = "check whether keytab has a key of principal" if keytab else "check the ticket cache"
    assert rest.startswith(check or other)
