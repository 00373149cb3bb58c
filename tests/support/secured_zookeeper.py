"""A ZooKeeper with a TLS port that requires certificates, a plain port, and users with passwords.

`Secured` has the certificates. `table` is the settings' table `zookeeper` for each way to connect.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from kzconsumer_sandbox.servers.configuration import HOST, as_text, free_port
from kzconsumer_sandbox.servers.jars import NEWEST, resolve_jars
from kzconsumer_sandbox.servers.kafka_servers import ZooKeeperServer
from tests.support.secured import STORE_PASSWORD, Secured
from tests.support.servers import Servers

PASSWORDS = {"bob": "b\u00f6b's secret", "eve": "eve's secret"}


class SecuredZooKeeper(ZooKeeperServer):
    """`port` is the plain one, `secure_port` speaks TLS; SASL and the scheme digest are known on both."""

    def __init__(self, folder: Path, servers: Servers, secured: Secured, *, sasl_required: bool = False) -> None:
        super().__init__(folder, servers.java, resolve_jars(NEWEST.jars))
        self.secure_port = free_port()
        self._secured = secured
        self._sasl_required = sasl_required

    def command(self) -> list[str]:
        java, *flags, file = super().command()
        jaas = self.folder / "jaas.conf"
        users = "".join(f'  user_{name}="{password}"\n' for name, password in PASSWORDS.items())
        login = f"org.apache.zookeeper.server.auth.DigestLoginModule required\n{users};"
        jaas.write_text(f"Server {{\n{login}\n}};\n")
        with Path(file).open("a") as config:
            config.write(
                as_text(
                    {
                        "secureClientPort": self.secure_port,
                        "secureClientPortAddress": HOST,
                        "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
                        "authProvider.sasl": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider",
                        "ssl.keyStore.location": self._secured.key_store,
                        "ssl.keyStore.password": STORE_PASSWORD,
                        "ssl.trustStore.location": self._secured.trust_store,
                        "ssl.trustStore.password": STORE_PASSWORD,
                        "ssl.hostnameVerification": "false",  # of its clients'
                        "ssl.clientAuth": "need",
                        "sessionRequireClientSASLAuth": str(self._sasl_required).lower(),
                    }
                )
            )
        return [java, f"-Djava.security.auth.login.config={jaas}", "-Dfile.encoding=UTF-8", *flags, file]

    def table(
        self,
        *,
        tls: Mapping[str, object] | None = None,
        user: str | None = None,
        password: str | None = None,
        scheme: str = "sasl",
        **more: object,
    ) -> dict[str, object]:
        """The settings' table `zookeeper`, over TLS if `tls` is given, which changes keys of its table."""
        table: dict[str, object] = {"connect": self.connect, "session_timeout": "6s"}
        if tls is not None:
            right = {"ca": self._secured.ca_file, "certificate": self._secured.client_certificate}
            changed = {key: value for key, value in (right | dict(tls)).items() if value is not None}
            table |= {"connect": f"{HOST}:{self.secure_port}", "secure": True, "tls": changed}
        if user is not None:
            content = PASSWORDS[user] if password is None else password
            file = self._secured.file(f"zookeeper-{user}-{abs(hash(content))}", content + "\n")
            table[scheme] = {"username": user, "password_file": file}
        return table | more


@contextmanager
def secured_zookeeper(
    servers: Servers, secured: Secured, folder: Path, *, sasl_required: bool = False
) -> Iterator[SecuredZooKeeper]:
    """`sasl_required`: a client without authentication gets no answer."""
    server = SecuredZooKeeper(folder, servers, secured, sasl_required=sasl_required)
    server.start()
    try:
        server.wait_ready()
        yield server
    finally:
        server.kill()
