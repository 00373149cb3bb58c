"""The hosts that a server's certificate is for, in the error that says that it is not for ours."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from typing import Any, Final

_OTHER_HOST: Final = {62, 64}
"""X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH"""


class OtherHostError(ssl.SSLCertVerificationError):
    """The certificate is signed by a trusted authority, but not for `host`; `names` are those in it, if known."""

    def __init__(self, host: str, names: Sequence[str], reason: str) -> None:
        super().__init__(reason)
        self.host = host
        self.names = names


class NamingConnection(ssl.SSLObject):
    """A connection whose handshake raises OtherHostError; a context's `sslobject_class`."""

    def do_handshake(self) -> None:
        try:
            super().do_handshake()
        except ssl.SSLCertVerificationError as error:
            if error.verify_code not in _OTHER_HOST:
                raise
            raise OtherHostError(str(self.server_hostname), self._names(), error.verify_message) from error

    def _names(self) -> list[str]:
        """Empty if this Python or OpenSSL does not give away a certificate that it rejects."""
        find: Any = getattr(getattr(self, "_sslobj", None), "get_unverified_chain", lambda: None)
        for certificate in find() or ():
            found = certificate.get_info()
            names = [name for kind, name in found.get("subjectAltName", ()) if kind in ("DNS", "IP Address")]
            return names or [name for part in found["subject"] for kind, name in part if kind == "commonName"]
        return []
