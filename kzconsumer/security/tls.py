"""TLS contexts for brokers and ZooKeeper as the settings say, and what the failures of TLS mean.

The files are read each time. A fault is one line, without secrets and values that may be secrets.
"""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from kzconsumer.display import some
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
        except OSError as error:  # somebody is replacing it
            faults.append(f"{where} ca: {settings.ca} cannot be read: {reason_of(error)}")
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
    except OSError as error:  # somebody is replacing them
        faults.append(f"{where} certificate: {certificate} or its key cannot be read: {reason_of(error)}")


def _readable(file: str, where: str, faults: list[str]) -> bool:
    try:
        with open(file, "rb"):
            return True
    except (OSError, ValueError) as error:
        faults.append(f"{where}: {file} cannot be read: {reason_of(error)}")
        return False


# The reasons for TLS failures, with the settings to check. The text has no server's name yet.


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
        return f"TLS failed ({words}): has {peer.table} certificate expired, or does this {peer.what} not trust it?"
    # Alerts differ with versions of TLS and Java; those for a missing certificate end up here.
    return f"TLS failed ({words}): does this {peer.what} want {peer.table} certificate?"


def _other_host(error: OtherHostError, peer: Peer) -> str:
    only = f", only for {some(error.names)}" if error.names else ""
    way_out = f"change {peer.names}, or set {peer.table} verify_hostname = false"
    return f"its certificate is not for {error.host}{only}: {way_out}"
