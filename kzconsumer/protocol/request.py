"""What every request is: something that can write itself, and read the answer to itself, at a version.

Owns no state. `network/broker_connection` is the caller. Headers, sizes and correlation ids are `frames`' business.
"""

from __future__ import annotations

from typing import ClassVar, Protocol, TypeVar

R_co = TypeVar("R_co", covariant=True)


class Request(Protocol[R_co]):
    """One request; `version` is always one that `versions.SPOKEN` holds for `api_key`."""

    api_key: ClassVar[int]

    def encode(self, version: int) -> bytes:
        """The request's body, without size and header."""

    def decode(self, version: int, body: memoryview) -> R_co:
        """The response from its body, without size and header. Raises ProtocolError and nothing else."""
