"""What the settings say of TLS and SASL, made ready for a new connection: the only place that reads keys and passwords.

Owns nothing lasting: `load_security` reads the files anew for each connection, so that certificates and passwords can
be renewed under a running member. A fault is one line that holds neither a secret nor a value that might be one.
"""

from __future__ import annotations

import secrets
import ssl

from kzconsumer.config import BrokersSettings, SaslSettings, TlsSettings
from kzconsumer.errors import ConfigError
from kzconsumer.protocol.mechanisms import exchange
from kzconsumer.protocol.scram import Exchange
from kzconsumer.secret import read_secret, reason_of


class Sasl:
    """Who we are. Nothing that is printed of it holds the password."""

    def __init__(self, mechanism: str, username: str, password: bytes) -> None:
        self.mechanism = mechanism
        self.username = username
        self._password = password

    def __repr__(self) -> str:
        return f"<Sasl {self.mechanism} as {self.username}>"

    def exchange(self) -> Exchange:
        return exchange(self.mechanism, self.username, self._password, secrets.token_urlsafe(24))


class Security:
    """How a connection begins; None for what it does without."""

    def __init__(
        self, tls: ssl.SSLContext | None = None, sasl: Sasl | None = None, *, certificate_given: bool = False
    ) -> None:
        self.tls = tls
        self.sasl = sasl
        self.certificate_given = certificate_given

    def __repr__(self) -> str:
        return f"<Security {'TLS' if self.tls else 'no TLS'}, {self.sasl or 'no SASL'}>"


def load_security(settings: BrokersSettings, source: str) -> Security:
    """Check what the settings need against what they hold, and read the files they name. Blocks for milliseconds.

    Raises ConfigError, one line a fault; `source` begins each.
    """
    faults: list[str] = []
    tls = sasl = None
    if settings.uses_tls:
        tls = _tls(settings.tls, f"{source}: [brokers.tls]", faults)
    elif settings.tls != TlsSettings():
        faults.append(f"{source}: [brokers.tls]: security_protocol {settings.security_protocol} uses no TLS")
    if settings.uses_sasl:
        sasl = _sasl(settings.sasl, f"{source}: [brokers.sasl]", faults)
    elif settings.sasl != SaslSettings():
        faults.append(f"{source}: [brokers.sasl]: security_protocol {settings.security_protocol} uses no SASL")
    if faults:
        raise ConfigError(faults)
    return Security(tls, sasl, certificate_given=settings.tls.certificate is not None)


def _tls(settings: TlsSettings, where: str, faults: list[str]) -> ssl.SSLContext:
    # Not create_default_context: from Python 3.13 on that one refuses what keytool and Kafka's own guide produce.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
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

    def tell_password() -> bytes:
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
        context.load_cert_chain(certificate, settings.key, tell_password)
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


def _sasl(settings: SaslSettings, where: str, faults: list[str]) -> Sasl:
    if settings.mechanism is None:
        faults.append(f"{where} mechanism: missing (PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512)")
    if settings.username is None:
        faults.append(f"{where} username: missing")
    before = len(faults)
    password = read_secret(settings.password_file, settings.password_env, "password", where, faults)
    if password is None and len(faults) == before:
        faults.append(f"{where} password_file: missing (or password_env)")
    return Sasl(settings.mechanism or "", settings.username or "", password or b"")


def _readable(file: str, where: str, faults: list[str]) -> bool:
    try:
        with open(file, "rb"):
            return True
    except (OSError, ValueError) as error:
        faults.append(f"{where}: {file} cannot be read: {reason_of(error)}")
        return False
