"""Clusters with every kind of listener, the certificates they need and the users they know.

Owns the authorities and key stores of one test run; the brokers are `servers`'. Readiness checks and producers use a
cluster's plain listener; `table` has the settings for each of the others.
"""

from __future__ import annotations

import datetime
import os
import subprocess
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path

import anyio
import trustme
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.serialization import pkcs12
from cryptography.x509 import load_pem_x509_certificate

from kzconsumer_sandbox.servers.configuration import HOST, QUICK_START
from kzconsumer_sandbox.servers.jars import NEWEST
from kzconsumer_sandbox.servers.kafka_servers import Cluster, ZooKeeperServer
from tests.support.servers import Servers
from tests.support.zookeeper_sessions import session

STORE_PASSWORD = "store-password"
PLAIN_USER, SCRAM_USER = "plain-user", "scram=user,1"
PLAIN_PASSWORD = "pl\u00e4in secret"
# SASLprep would turn the ligature into "fi" and the no-break space into a space; Kafka does neither.
SCRAM_PASSWORD = "scr\u00e4m \ufb01ne\u00a0secret"

LISTENERS = {
    "SSL": "SSL",
    "MUTUAL": "SSL",
    "EXPIRED": "SSL",
    "SASL_PLAINTEXT": "SASL_PLAINTEXT",
    "SASL_SSL": "SASL_SSL",
    "SHORT": "SASL_PLAINTEXT",
}
"""Name -> protocol. MUTUAL asks for a client's certificate, EXPIRED shows a broker's that has; SHORT knows PLAIN alone
and ends sessions after two seconds (from 2.2 on). The newest version has OAUTH as well, which takes tokens without
signatures. 0.10.2 configures all alike: its TLS listeners are MUTUAL."""
ALIKE = "0.10.2.2"
MODULES = "org.apache.kafka.common.security"


class Secured:
    """All secured servers of one test run; `cluster_of` starts a version's cluster when it is first needed."""

    def __init__(self, servers: Servers, folder: Path) -> None:
        self.folder = folder
        self._servers = servers
        self._users: dict[str, bytes] = {}
        self.ca = trustme.CA()
        self.other_ca = trustme.CA()
        self.ca_file = self._file("ca.pem", self.ca.cert_pem.bytes())
        self.other_ca_file = self._file("other-ca.pem", self.other_ca.cert_pem.bytes())

    def cluster_of(self, version: str) -> Cluster:
        return self._servers.shared(f"secured-{version}", lambda name: self.cluster(name, version))

    def cluster(self, name: str, version: str, zookeeper: ZooKeeperServer | None = None) -> Cluster:
        """A cluster of one's own, of one broker, under the chroot `/<name>` of a ZooKeeper's plain port."""
        self._make_scram_user(f"{(zookeeper or self._servers.zookeeper).connect}/{name}")
        jaas = self._file(f"{name}.jaas", _jaas().encode())
        config: dict[str, object] = {
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
            "ssl.keystore.location": self.key_store,
            "ssl.keystore.type": "PKCS12",
            "ssl.keystore.password": STORE_PASSWORD,
            "ssl.key.password": STORE_PASSWORD,
            "ssl.truststore.location": self.trust_store,
            "ssl.truststore.type": "PKCS12",
            "ssl.truststore.password": STORE_PASSWORD,
            "listener.name.mutual.ssl.client.auth": "required",
            "listener.name.expired.ssl.keystore.location": self.expired_key_store,
            "listener.name.short.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.short.plain.connections.max.reauth.ms": 2000,
        }
        listeners = LISTENERS
        if version == ALIKE:
            config["ssl.client.auth"] = "required"
        elif version == NEWEST.number:
            listeners = {**LISTENERS, "OAUTH": "SASL_PLAINTEXT"}
            config["listener.name.oauth.sasl.enabled.mechanisms"] = "OAUTHBEARER"
            config["listener.name.oauth.oauthbearer.sasl.jaas.config"] = (
                f'{MODULES}.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="broker";'
            )
        flags = (*QUICK_START, f"-Djava.security.auth.login.config={jaas}", "-Dzookeeper.sasl.client=false")
        return self._servers.cluster(
            name, version, zookeeper=zookeeper, config=config, listeners=listeners, tuning=flags
        )

    def table(
        self,
        cluster: Cluster,
        listener: str,
        mechanism: str | None = None,
        *,
        tls: Mapping[str, str | bool] | None = None,
        sasl: Mapping[str, str] | None = None,
    ) -> dict[str, object]:
        """The settings' table `brokers` for the listener; `tls` and `sasl` change keys of its tables."""
        protocol = (LISTENERS | {"PLAINTEXT": "PLAINTEXT"})[listener]
        table: dict[str, object] = {"security_protocol": protocol, "listener": listener}
        if protocol.endswith("SSL"):
            mutual = listener == "MUTUAL" or cluster.version == ALIKE
            certificate = {"certificate": self.client_certificate} if mutual else {}
            table["tls"] = {"ca": self.ca_file, **certificate, **(tls or {})}
        if mechanism is not None:
            user = PLAIN_USER if mechanism == "PLAIN" else SCRAM_USER
            identity = {"mechanism": mechanism, "username": user, "password_file": self.password_files[user]}
            table["sasl"] = identity | dict(sasl or {})
        return table

    def file(self, name: str, content: str) -> str:
        return self._file(name, content.encode())

    @cached_property
    def password_files(self) -> dict[str, str]:
        """User -> a file with the password."""
        return {
            PLAIN_USER: self.file("plain-password", PLAIN_PASSWORD + "\n"),
            SCRAM_USER: self.file("scram-password", SCRAM_PASSWORD + "\n"),
        }

    @cached_property
    def client_certificate(self) -> str:
        """Certificate and key in one file."""
        issued = self.ca.issue_cert("client.example")
        return self._file("client.pem", issued.private_key_and_cert_chain_pem.bytes())

    @cached_property
    def foreign_certificate(self) -> str:
        """The same, signed by an authority the brokers do not know."""
        issued = self.other_ca.issue_cert("client.example")
        return self._file("foreign.pem", issued.private_key_and_cert_chain_pem.bytes())

    @cached_property
    def expired_certificate(self) -> str:
        """The same, and its time is over."""
        issued = self.ca.issue_cert("client.example", not_after=_yesterday())
        return self._file("expired-client.pem", issued.private_key_and_cert_chain_pem.bytes())

    @cached_property
    def key_store(self) -> str:
        return self._key_store("broker.p12", self.ca.issue_cert(HOST))

    @cached_property
    def expired_key_store(self) -> str:
        return self._key_store("expired.p12", self.ca.issue_cert(HOST, not_after=_yesterday()))

    @cached_property
    def trust_store(self) -> str:
        authority = pkcs12.PKCS12Certificate(load_pem_x509_certificate(self.ca.cert_pem.bytes()), b"ca")
        return self._file("trust.p12", pkcs12.serialize_java_truststore([authority], _quickly_read()))

    def _key_store(self, name: str, issued: trustme.LeafCert) -> str:
        key = serialization.load_pem_private_key(issued.private_key_pem.bytes(), None)
        chain = [load_pem_x509_certificate(pem.bytes()) for pem in issued.cert_chain_pems]
        store = pkcs12.serialize_key_and_certificates(b"broker", key, chain[0], chain[1:], _quickly_read())  # type: ignore[arg-type]
        return self._file(name, store)

    def _file(self, name: str, content: bytes) -> str:
        path = self.folder / name
        path.write_bytes(content)
        return str(path)

    def _make_scram_user(self, zookeeper: str) -> None:
        """By Kafka's own tool, in the cluster's chroot, before its broker starts; later clusters get the same nodes."""
        with ThreadPoolExecutor(1) as apart:  # called from the event loop of the test
            apart.submit(anyio.run, _make_nodes, zookeeper, self._users).result()
            if not self._users:
                self._run_tool(zookeeper)
                self._users = apart.submit(anyio.run, _users, zookeeper).result()

    def _run_tool(self, zookeeper: str) -> None:
        credential = f"[iterations=4096,password={SCRAM_PASSWORD}]"
        command = self._servers.java_command(
            "1.1.1",
            "kafka.admin.ConfigCommand",
            *("--zookeeper", zookeeper, "--alter", "--entity-type", "users", "--entity-name", SCRAM_USER),
            *("--add-config", f"SCRAM-SHA-256={credential},SCRAM-SHA-512={credential}"),
        )
        environment = os.environ | {"LC_ALL": "C.UTF-8"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "Completed" in done.stdout, done.stdout + done.stderr


def _yesterday() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)


def _quickly_read() -> serialization.KeySerializationEncryption:
    """With one round in place of the usual 20,000: a broker reads its stores for each listener, and again to check."""
    built = serialization.PrivateFormat.PKCS12.encryption_builder().kdf_rounds(1).hmac_hash(hashes.SHA256())
    return built.key_cert_algorithm(pkcs12.PBES.PBESv2SHA256AndAES256CBC).build(STORE_PASSWORD.encode())


async def _make_nodes(zookeeper: str, users: Mapping[str, bytes]) -> None:
    """The chroot, and users in it."""
    async with session(zookeeper) as connected:
        await connected.ensure("/")
        for path, data in users.items():
            await connected.ensure(path)
            await connected.set(path, data, -1)


async def _users(zookeeper: str) -> dict[str, bytes]:
    async with session(zookeeper) as connected:
        paths = [f"/config/users/{name}" for name in await connected.children("/config/users")]
        return {path: (await connected.get(path)).data for path in paths}


def _jaas() -> str:
    return (
        "KafkaServer {\n"
        f'  {MODULES}.plain.PlainLoginModule required user_{PLAIN_USER}="{PLAIN_PASSWORD}";\n'
        f"  {MODULES}.scram.ScramLoginModule required;\n"
        "};\n"
    )
