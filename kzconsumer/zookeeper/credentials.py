"""TLS and authentication for a new connection to ZooKeeper, as the settings say."""

from __future__ import annotations

import secrets
import ssl

from kzconsumer.errors import ConfigError
from kzconsumer.security.sasl import Sasl, digest_md5
from kzconsumer.security.tls import tls_context
from kzconsumer.security.tokens import kerberos
from kzconsumer.settings.layers import read_secret
from kzconsumer.settings.sections import TlsSettings, UserSettings, ZooKeeperSaslSettings, ZooKeeperSettings


class Access:
    """How a connection is secured and authenticated; None for what is not used.

    `digest` are the credentials for ZooKeeper's scheme of that name: user name and password.
    """

    def __init__(
        self,
        tls: ssl.SSLContext | None = None,
        sasl: Sasl | None = None,
        digest: bytes | None = None,
        *,
        certificate_given: bool = False,
    ) -> None:
        self.tls = tls
        self.sasl = sasl
        self.digest = digest
        self.certificate_given = certificate_given


def needs_access(settings: ZooKeeperSettings) -> bool:
    """Whether there is anything for `load_access` to read or refuse."""
    plain = ZooKeeperSettings(connect=settings.connect, session_timeout=settings.session_timeout)
    return settings != plain


def load_access(settings: ZooKeeperSettings, source: str = "") -> Access:
    """Check the settings and read the files that they name, which may be renewed while the member runs.

    Blocks for milliseconds. Raises ConfigError with one line per fault, each beginning with `source`.
    """
    begin = f"{source}: " if source else ""
    faults: list[str] = []
    tls = None
    if settings.secure:
        tls = tls_context(settings.tls, f"{begin}[zookeeper.tls]", faults)
    elif settings.tls != TlsSettings():
        faults.append(f"{begin}[zookeeper.tls]: secure is false, so no TLS is used")
    sasl = _sasl(settings.sasl, f"{begin}[zookeeper.sasl]", faults)
    digest = None
    if settings.digest != UserSettings():
        digest = b":".join(_user(settings.digest, f"{begin}[zookeeper.digest]", faults))
    certificate_given = settings.secure and settings.tls.certificate is not None
    if settings.acl != "open" and not (sasl or digest or certificate_given or faults):
        missing = "needs an identity: [zookeeper.sasl], [zookeeper.digest] or a certificate"
        faults.append(f"{begin}[zookeeper] acl: {settings.acl} {missing}")
    if faults:
        raise ConfigError(faults)
    return Access(tls, sasl, digest, certificate_given=certificate_given)


def _sasl(settings: ZooKeeperSaslSettings, where: str, faults: list[str]) -> Sasl | None:
    if settings == ZooKeeperSaslSettings():
        return None
    faults += [f"{where} {fault}" for fault in settings.faults()]
    if settings.mechanism == "GSSAPI":
        return kerberos(settings, where, faults)
    name, password = _user(settings, where, faults)
    nonce = secrets.token_urlsafe
    username = name.decode()
    return Sasl("DIGEST-MD5", f"as {username}", lambda host: digest_md5(username, password, nonce(24)))


def _user(settings: UserSettings, where: str, faults: list[str]) -> tuple[bytes, bytes]:
    """The name and the password."""
    if settings.username is None:
        faults.append(f"{where} username: missing")
    elif ":" in settings.username and where.endswith("digest]"):
        faults.append(f"{where} username: holds a colon, which ends names in this scheme")
    before = len(faults)
    password = read_secret(settings.password_file, settings.password_env, "password", where, faults)
    if password is None and len(faults) == before:
        faults.append(f"{where} password_file: missing (or password_env)")
    return (settings.username or "").encode(), password or b""
