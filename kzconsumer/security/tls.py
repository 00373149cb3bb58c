"""TLS contexts for brokers and ZooKeeper as the settings say: trusted authorities and our own certificate.

The files are read each time. A fault is one line, without secrets and values that may be secrets.
"""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from typing import Any, Final

from kzconsumer.settings.layers import read_secret, reason_of
from kzconsumer.settings.sections import TlsSettings

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


def tls_context(settings: TlsSettings, where: str, faults: list[str]) -> ssl.SSLContext:
    """Faults are added to `faults`, each line beginning with `where`. Blocks for milliseconds."""
    # Not create_default_context: from Python 3.13 on that one refuses what keytool and Kafka's own guide produce.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.sslobject_class = NamingConnection
    context.check_hostname = settings.verify_hostname
    if settings.ca is None:
        context.load_default_certs()
    elif _readable(settings.ca, f"{where} ca", faults):
        try:
            context.load_verify_locations(settings.ca)
        except ssl.SSLError:
            faults.append(f"{where} ca: {settings.ca} holds no certificate in PEM")
    if settings.certificate is not None:
        _own_certificate(context, settings.certificate, settings, where, faults)
    elif (settings.key, settings.key_password_file, settings.key_password_env) != (None, None, None):
        faults.append(f"{where} certificate: missing, but its key is given")
    return context


def _own_certificate(
    context: ssl.SSLContext, certificate: str, settings: TlsSettings, where: str, faults: list[str]
) -> None:
    password = read_secret(settings.key_password_file, settings.key_password_env, "key_password", where, faults)
    asked = False

    def give_password() -> bytes:
        # Without this function OpenSSL would ask on the terminal.
        nonlocal asked
        asked = True
        return password or b""

    files = [_readable(certificate, f"{where} certificate", faults)]
    if settings.key is not None:
        files.append(_readable(settings.key, f"{where} key", faults))
    if not all(files):
        return
    try:
        context.load_cert_chain(certificate, settings.key, give_password)
    except (ssl.SSLError, ValueError) as error:
        if isinstance(error, ssl.SSLError) and error.reason == "KEY_VALUES_MISMATCH":
            fault = f"key: {settings.key} is not the key of {certificate}"
        elif asked and password is None:
            fault = "key: is encrypted; key_password_file or key_password_env is missing"
        elif asked:
            fault = "key: the password given does not open it"
        else:
            fault = f"certificate: {certificate} and {settings.key or 'no key file'} hold no certificate and key in PEM"
        faults.append(f"{where} {fault}")


def _readable(file: str, where: str, faults: list[str]) -> bool:
    try:
        with open(file, "rb"):
            return True
    except (OSError, ValueError) as error:
        faults.append(f"{where}: {file} cannot be read: {reason_of(error)}")
        return False
