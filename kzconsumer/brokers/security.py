"""TLS and SASL for a new connection to a broker, as the settings say."""

from __future__ import annotations

import ssl

from kzconsumer.errors import ConfigError
from kzconsumer.security.exchange import Sasl
from kzconsumer.security.kerberos import kerberos
from kzconsumer.security.oauth_bearer import oauth_bearer
from kzconsumer.security.sasl import with_password
from kzconsumer.security.tls import tls_context
from kzconsumer.settings.secret import read_secret
from kzconsumer.settings.sections import BrokersSettings, SaslSettings, TlsSettings


class Security:
    """How a connection is secured; None for what is not used."""

    def __init__(
        self, tls: ssl.SSLContext | None = None, sasl: Sasl | None = None, *, certificate_given: bool = False
    ) -> None:
        self.tls = tls
        self.sasl = sasl
        self.certificate_given = certificate_given


def load_security(settings: BrokersSettings, source: str) -> Security:
    """Check the settings and read the files that they name, which may be renewed while the member runs.

    Blocks for milliseconds. Raises ConfigError with one line per fault, each beginning with `source`.
    """
    faults: list[str] = []
    tls = sasl = None
    if settings.uses_tls:
        tls = tls_context(settings.tls, f"{source}: [brokers.tls]", faults)
    elif settings.tls != TlsSettings():
        faults.append(f"{source}: [brokers.tls]: security_protocol {settings.security_protocol} uses no TLS")
    if settings.uses_sasl:
        sasl = _sasl(settings.sasl, f"{source}: [brokers.sasl]", faults)
    elif settings.sasl != SaslSettings():
        faults.append(f"{source}: [brokers.sasl]: security_protocol {settings.security_protocol} uses no SASL")
    if faults:
        raise ConfigError(faults)
    return Security(tls, sasl, certificate_given=settings.tls.certificate is not None)


def _sasl(settings: SaslSettings, where: str, faults: list[str]) -> Sasl:
    faults += [f"{where} {fault}" for fault in settings.faults()]
    if settings.mechanism == "GSSAPI":
        return kerberos(settings, where, faults)
    if settings.mechanism == "OAUTHBEARER":
        return oauth_bearer(settings, where, faults)
    if settings.mechanism is None:
        faults.append(f"{where} mechanism: missing (PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER or GSSAPI)")
    if settings.username is None:
        faults.append(f"{where} username: missing")
    before = len(faults)
    password = read_secret(settings.password_file, settings.password_env, "password", where, faults)
    if password is None and len(faults) == before:
        faults.append(f"{where} password_file: missing (or password_env)")
    return with_password(settings.mechanism or "", settings.username or "", password or b"")
