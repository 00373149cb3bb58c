"""The versions of requests that are used with a broker, as text."""

from __future__ import annotations

from kzconsumer.brokers.protocol.versions import API_VERSIONS, SASL_AUTHENTICATE, SASL_HANDSHAKE, SPOKEN, Versions
from kzconsumer.errors import UnsupportedVersionError

_FOR_CONNECTING = {API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE}


def agreed(versions: Versions) -> str:
    """Such as `Fetch 12, ListOffsets 5, Metadata 10`."""
    return ", ".join(
        f"{SPOKEN[api_key].name} {_chosen(versions, api_key)}"
        for api_key in SPOKEN
        if api_key in versions.ranges and api_key not in _FOR_CONNECTING
    )


def _chosen(versions: Versions, api_key: int) -> str:
    try:
        return str(versions.choose(api_key))
    except UnsupportedVersionError:
        return "none"
