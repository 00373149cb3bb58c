"""What the servers of a simulated ensemble ask of each connection before they serve it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kzconsumer.security.sasl import Exchange, Sasl
from tests.support.simulated.zookeeper_frames import AUTH, SASL, Request

AUTH_FAILED, REQUIRES_SASL = -115, -124
AUTH_XID = -4


class Login:
    """Of one connection: first the tokens, each with its answer, then the user of the scheme digest."""

    def __init__(self, tokens: Sequence[tuple[bytes, bytes]] = (), user: bytes | None = None) -> None:
        self._left = list(tokens)
        self._user = user
        self.passed = not tokens and user is None
        self.asked: list[int] = []
        """What came before it was passed, by kind."""

    def take(self, request: Request) -> bytes | int:
        """The body of the answer to a request, or the code with which the connection is closed."""
        self.asked.append(request.kind)
        if request.kind == SASL:
            if not self._left or request.data != self._left[0][0]:
                return AUTH_FAILED
            _, answer = self._left.pop(0)
            self.passed = not self._left and self._user is None
            return len(answer).to_bytes(4, "big") + answer
        if request.kind != AUTH or self._left:
            return REQUIRES_SASL
        if (request.xid, request.path, request.data) != (AUTH_XID, "digest", self._user):
            return AUTH_FAILED
        self.passed = True
        return b""


def proving(tokens: Sequence[tuple[bytes, bytes]], begun: Callable[[str], object], *, last_is_returned: bool) -> Sasl:
    """The client's half of such an exchange: it fails unless each answer is that of its token.

    `begun` is called with the host of each. `last_is_returned`: the last token's answer has no content.
    """

    def exchange(host: str) -> Exchange:
        begun(host)
        for number, (token, answer) in enumerate(tokens, 1):
            if number == len(tokens) and last_is_returned:
                return token
            assert (yield token) == answer
        return None

    return Sasl("TOY", "as alice", exchange)
