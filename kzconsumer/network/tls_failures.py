"""Why TLS with a broker failed, in words that name the way out.

Owns no state. `network/broker_connection` asks, with what OpenSSL and asyncio raise; the text has no broker's name yet.
"""

from __future__ import annotations

import ssl
from typing import Final

_CERTIFICATE: Final = {
    9: "its certificate is not valid yet: are the clocks right?",
    10: "its certificate has expired",
    62: "its certificate is for other host names ({detail}): see advertised.listeners there, verify_hostname here",
    64: "its certificate is for other addresses ({detail}): see advertised.listeners there, verify_hostname here",
}
"""By OpenSSL's X509_V_ERR_*."""
_UNTRUSTED: Final = {2, 18, 19, 20, 21}
"""The chain ends in an authority we do not know, or the certificate is its own."""

_ALERTS: Final = {
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "it wants a certificate of us: [brokers.tls] certificate",
    "TLSV1_ALERT_UNKNOWN_CA": "it does not know the authority that signed [brokers.tls] certificate",
}
"""What a broker may tell us before it hangs up, by OpenSSL's names."""


def explain(error: ssl.SSLError, *, certificate_given: bool) -> str:
    """One line; `certificate_given` is whether we have a certificate of our own to show."""
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code in _UNTRUSTED:
            return f"its certificate is signed by none of [brokers.tls] ca ({error.verify_message})"
        reason = _CERTIFICATE.get(error.verify_code, "its certificate is refused ({detail})")
        return reason.format(detail=error.verify_message.rstrip("."))
    reason = error.reason or str(error)
    if reason in _ALERTS:
        return _ALERTS[reason]
    if "ALERT" in reason and ("BAD_CERTIFICATE" in reason or "HANDSHAKE_FAILURE" in reason):
        if not certificate_given:
            return f"it refuses the TLS handshake ({_words(reason)}): does it want [brokers.tls] certificate?"
        return f"it refuses our certificate ({_words(reason)})"
    if reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG"):
        return f"it does not answer in TLS: is this listener one of [brokers] security_protocol? ({_words(reason)})"
    return f"TLS failed: {_words(reason)}"


HUNG_UP: Final = "hung up in the TLS handshake: is this listener one of [brokers] security_protocol?"
"""What a listener without TLS does, and a broker that stops."""


def _words(reason: str) -> str:
    return reason.replace("_", " ").lower()
