"""Which of a broker's listeners to connect to.

Metadata returns the other brokers' addresses on the listener that it was requested on, so the choice holds for all.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class Listener(msgspec.Struct, frozen=True):
    """One `listeners` entry of a broker. Before 0.10.2 a listener's name is its security protocol."""

    name: str
    security_protocol: str
    host: str
    port: int

    def __str__(self) -> str:
        return self.name if self.name == self.security_protocol else f"{self.name} ({self.security_protocol})"


def choose(listeners: Sequence[Listener], name: str | None, security_protocol: str) -> Listener:
    """The listener called `name`; without a name the one called like the protocol, or the only one that uses it.

    Raises ValueError with the existing listeners and the setting to change if there is none.
    """
    there_are = f"it has {', '.join(map(str, listeners)) or 'none'}"
    if name is not None:
        named = [listener for listener in listeners if listener.name == name]
        if not named:
            raise ValueError(f"no listener {name} ([brokers] listener); {there_are}")
        if named[0].security_protocol != security_protocol:
            raise ValueError(
                f"listener {name} speaks {named[0].security_protocol}, not {security_protocol} "
                f"([brokers] security_protocol)"
            )
        return named[0]
    speaking = [listener for listener in listeners if listener.security_protocol == security_protocol]
    alike = [listener for listener in speaking if listener.name == security_protocol]
    if not speaking:
        raise ValueError(f"no listener speaks {security_protocol} ([brokers] security_protocol); {there_are}")
    if not alike and len(speaking) > 1:
        raise ValueError(f"several listeners speak {security_protocol}, [brokers] listener names none; {there_are}")
    return (alike or speaking)[0]
