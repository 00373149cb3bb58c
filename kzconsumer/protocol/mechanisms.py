"""The SASL mechanisms we speak, by Kafka's names: which tokens prove that we are the user we say.

Owns no state. `network/sasl` carries the tokens. PLAIN sends the password itself (RFC 4616): only TLS hides it.
"""

from __future__ import annotations

from typing import Final

from kzconsumer.protocol.scram import Exchange, scram

_SCRAM_HASHES: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}


def exchange(mechanism: str, username: str, password: bytes, nonce: str) -> Exchange:
    """A new exchange of `mechanism`: PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512 (KIP-84). `nonce` is for SCRAM."""
    if mechanism == "PLAIN":
        return _plain(username, password)
    return scram(_SCRAM_HASHES[mechanism], username, password, nonce)


def _plain(username: str, password: bytes) -> Exchange:
    yield b"\0".join((b"", username.encode(), password))
