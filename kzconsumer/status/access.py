"""Access control of the status server: by token, or without one by the Host header."""

from __future__ import annotations

import hmac
from http import HTTPStatus

from kzconsumer.errors import ConfigError
from kzconsumer.settings.layers import read_secret
from kzconsumer.settings.sections import StatusSettings
from kzconsumer.settings.value_readers import is_loopback


def load_token(status: StatusSettings, source: str) -> bytes | None:
    """The token that requests must have; None without one. Raises ConfigError when it cannot be read."""
    faults: list[str] = []
    token = read_secret(status.token_file, status.token_env, "token", f"{source}: [status]", faults)
    if faults:
        raise ConfigError(faults)
    return token


def refusal(token: bytes | None, authorization: str, host: str | None) -> HTTPStatus | None:
    """The status of a refused request. `host` is its Host header; None over a unix socket.

    Without a token the Host header must be loopback, against DNS rebinding.
    """
    if token is not None:
        scheme, _, given = authorization.partition(" ")
        known = hmac.compare_digest(given.strip().encode("utf-8", "surrogateescape"), token)
        return None if known and scheme.lower() == "bearer" else HTTPStatus.UNAUTHORIZED
    if host is not None and not is_loopback(_without_port(host)):
        return HTTPStatus.FORBIDDEN
    return None


def _without_port(host: str) -> str:
    return host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
