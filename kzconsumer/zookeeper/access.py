"""What the settings say of TLS and of who we are to ZooKeeper, made ready for a new connection.

Owns nothing lasting: `load_access` reads the files anew for each connection, so that certificates and passwords can be
renewed under a running member. The session calls it. A fault is one line that holds neither a secret nor a value that
might be one.
"""

from __future__ import annotations

import secrets
import ssl

from kzconsumer.errors import ConfigError
from kzconsumer.security.digest_md5 import digest_md5
from kzconsumer.security.sasl import Exchange
from kzconsumer.security.secret import read_secret
from kzconsumer.security.tls import tls_context
from kzconsumer.settings.connections import TlsSettings, UserSettings, ZooKeeperSettings


class User:
    """A name and its password. Nothing that is printed of it holds the password."""

    def __init__(self, name: str, password: bytes) -> None:
        self.name = name
        self._password = password

    def __repr__(self) -> str:
        return f"<User {self.name}>"

    def exchange(self) -> Exchange:
        """The tokens of SASL DIGEST-MD5."""
        return digest_md5(self.name, self._password, secrets.token_urlsafe(24))

    def digest(self) -> bytes:
        """What ZooKeeper's scheme `digest` is told: the password itself."""
        return self.name.encode() + b":" + self._password


class Access:
    """How a connection begins; None for what it does without."""

    def __init__(
        self,
        tls: ssl.SSLContext | None = None,
        sasl: User | None = None,
        digest: User | None = None,
        *,
        certificate_given: bool = False,
    ) -> None:
        self.tls = tls
        self.sasl = sasl
        self.digest = digest
        self.certificate_given = certificate_given

    def __repr__(self) -> str:
        return f"<Access {'TLS' if self.tls else 'no TLS'}, SASL {self.sasl}, digest {self.digest}>"


def needs_access(settings: ZooKeeperSettings) -> bool:
    """Whether there is anything that `load_access` would read or refuse."""
    plain = ZooKeeperSettings(connect=settings.connect, session_timeout=settings.session_timeout)
    return settings != plain


def load_access(settings: ZooKeeperSettings, source: str = "") -> Access:
    """Check what the settings need against what they hold, and read the files they name. Blocks for milliseconds.

    Raises ConfigError, one line a fault; `source` begins each.
    """
    begin = f"{source}: " if source else ""
    faults: list[str] = []
    tls = None
    if settings.secure:
        tls = tls_context(settings.tls, f"{begin}[zookeeper.tls]", faults)
    elif settings.tls != TlsSettings():
        faults.append(f"{begin}[zookeeper.tls]: secure is false, so no TLS is used")
    sasl = _user(settings.sasl, f"{begin}[zookeeper.sasl]", faults)
    digest = _user(settings.digest, f"{begin}[zookeeper.digest]", faults)
    certificate_given = settings.secure and settings.tls.certificate is not None
    if settings.acl != "open" and not (sasl or digest or certificate_given or faults):
        nobody = "needs somebody to keep nodes for: [zookeeper.sasl], [zookeeper.digest] or a certificate"
        faults.append(f"{begin}[zookeeper] acl: {settings.acl} {nobody}")
    if faults:
        raise ConfigError(faults)
    return Access(tls, sasl, digest, certificate_given=certificate_given)


def _user(settings: UserSettings, where: str, faults: list[str]) -> User | None:
    if settings == UserSettings():
        return None
    if settings.username is None:
        faults.append(f"{where} username: missing")
    elif ":" in settings.username and where.endswith("digest]"):
        faults.append(f"{where} username: holds a colon, which ends names in this scheme")
    before = len(faults)
    password = read_secret(settings.password_file, settings.password_env, "password", where, faults)
    if password is None and len(faults) == before:
        faults.append(f"{where} password_file: missing (or password_env)")
    return User(settings.username or "", password or b"")
