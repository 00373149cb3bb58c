"""A SASL exchange with a server, the client's half, whatever the mechanism."""

from __future__ import annotations

from collections.abc import Callable, Generator

Exchange = Generator[bytes, bytes, bytes | None]
"""Yields the tokens to send and receives the answers. A token that it returns is sent, too: its answer has no content.

May block. Raises SecurityError if either side is refused, ProtocolError for a malformed answer.
"""


class Sasl:
    """A mechanism with an identity. Secrets are in no text of it."""

    def __init__(self, mechanism: str, identity: str, begin: Callable[[str], Exchange], check: str = "") -> None:
        """`begin` starts an exchange with a host. `check`: what to check if the server refuses; empty for passwords."""
        self.mechanism = mechanism
        self.begin = begin
        self.check = check
        self._identity = identity

    def __str__(self) -> str:
        """`PLAIN as orders`"""
        return f"{self.mechanism} {self._identity}"
