"""The reasons for TLS failures, with the settings to check. The text has no server's name yet."""

from __future__ import annotations

import ssl
from typing import Final, NamedTuple

from kzconsumer.display import some
from kzconsumer.security.tls import OtherHostError


class Peer(NamedTuple):
    """The terms for the other side, and the settings of its TLS."""

    what: str
    table: str
    whether: str
    """The settings that decide whether and where TLS is used."""
    names: str
    """Where the host comes from."""

    @property
    def hung_up(self) -> str:
        """The message for a port without TLS, and for a server that stops."""
        return f"hung up in the TLS handshake: does this {self.what} speak TLS? ({self.whether})"


BROKER: Final = Peer(
    "listener",
    "[brokers.tls]",
    "[brokers] security_protocol, listener",
    "advertised.listeners of the broker",
)
ZOOKEEPER: Final = Peer(
    "server",
    "[zookeeper.tls]",
    "[zookeeper] secure, connect",
    "[zookeeper] connect",
)

_FAULTS: Final = {
    9: "its certificate is not valid yet: are the clocks right?",
    10: "its certificate has expired",
}
"""Of a server's certificate, by OpenSSL's X509_V_ERR_*."""
_UNTRUSTED: Final = {2, 18, 19, 20, 21}
"""The chain ends in an unknown authority, or the certificate is self-signed."""


def explain(error: ssl.SSLError, peer: Peer, *, certificate_given: bool) -> str:
    """One line; `certificate_given`: whether we have a certificate of our own."""
    # What a wrong setting looks like from here:
    # - A broker that requires TLS answers a plain request with an alert, which parses as a response of 350 MB
    #   (`BrokerTransport` bounds the first one), and one without TLS answers a handshake with anything.
    # - A broker that requires SASL closes the connection at the request after ApiVersions.
    # - With TLS 1.3 a missing client certificate is reported only after the handshake, at the first read.
    if isinstance(error, OtherHostError):
        return _other_host(error, peer)
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code in _UNTRUSTED:
            return f"its certificate is signed by no authority of {peer.table} ca ({error.verify_message})"
        fault = _FAULTS.get(error.verify_code, "its certificate is refused ({detail})")
        return fault.format(detail=error.verify_message.rstrip("."))
    reason = error.reason or str(error)
    words = reason.replace("_", " ").lower()
    if reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG"):
        return f"does not answer in TLS ({words}): {peer.whether}"
    if certificate_given:
        return f"TLS failed ({words}): does this {peer.what} trust {peer.table} certificate?"
    # Alerts differ with versions of TLS and Java; those for a missing certificate end up here.
    return f"TLS failed ({words}): does this {peer.what} want {peer.table} certificate?"


def _other_host(error: OtherHostError, peer: Peer) -> str:
    only = f", only for {some(error.names)}" if error.names else ""
    way_out = f"change {peer.names}, or set {peer.table} verify_hostname = false"
    return f"its certificate is not for {error.host}{only}: {way_out}"
