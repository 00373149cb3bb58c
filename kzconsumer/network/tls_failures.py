"""Why TLS with a broker failed, in words that name the way out.

Owns no state. `network/broker_connection` asks, with what OpenSSL and asyncio raise; the text has no broker's name yet.
"""

from __future__ import annotations

import ssl
from typing import Final

HUNG_UP: Final = "hung up in the TLS handshake: does this listener speak TLS? ([brokers] security_protocol, listener)"
"""What a listener without TLS does, and a broker that stops."""

_FAULTS: Final = {
    9: "its certificate is not valid yet: are the clocks right?",
    10: "its certificate has expired",
    62: "its certificate is for other host names ({detail}): see advertised.listeners there, verify_hostname here",
    64: "its certificate is for other addresses ({detail}): see advertised.listeners there, verify_hostname here",
}
"""Of a broker's certificate, by OpenSSL's X509_V_ERR_*."""
_UNTRUSTED: Final = {2, 18, 19, 20, 21}
"""The chain ends in an authority we do not know, or the certificate vouches for itself."""


def explain(error: ssl.SSLError, *, certificate_given: bool) -> str:
    """One line; `certificate_given` is whether we have a certificate of our own to show."""
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code in _UNTRUSTED:
            return f"its certificate is signed by no authority of [brokers.tls] ca ({error.verify_message})"
        fault = _FAULTS.get(error.verify_code, "its certificate is refused ({detail})")
        return fault.format(detail=error.verify_message.rstrip("."))
    reason = error.reason or str(error)
    words = reason.replace("_", " ").lower()
    if reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG"):
        return f"does not answer in TLS ({words}): [brokers] security_protocol, listener"
    if certificate_given:
        return f"TLS failed ({words}): does this listener trust [brokers.tls] certificate?"
    # Alerts differ with versions of TLS and Java; all that a broker says of a certificate it misses ends up here.
    return f"TLS failed ({words}): does this listener want [brokers.tls] certificate?"
