"""A Kerberos realm on loopback: a KDC, principals, keytabs and tickets."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from kzconsumer_sandbox.servers.configuration import HOST, QUICK_START, free_port
from kzconsumer_sandbox.servers.jars import NEWEST, resolve_jars
from kzconsumer_sandbox.servers.kafka_servers import Cluster, ZooKeeperServer
from kzconsumer_sandbox.servers.server_process import ServerProcess
from tests.support.programs import KADMIN, KINIT, KRB5KDC, give_up, need
from tests.support.servers import Servers

REALM = "TEST.EXAMPLE"


class Realm(ServerProcess):
    """`environment` makes a client use it. The KDC hands out tickets for as long as each principal is allowed to."""

    def __init__(self, folder: Path) -> None:
        super().__init__("KDC", folder)
        self._kdc, self._kadmin, self._kinit = need(KRB5KDC), need(KADMIN), need(KINIT)
        self.port = free_port()
        folder.mkdir(parents=True, exist_ok=True)
        self.configuration = self.krb5_conf("krb5.conf", self.port)
        self.environment = {"KRB5_CONFIG": self.configuration, "KRB5CCNAME": f"FILE:{folder}/tickets"}
        (folder / "kdc.conf").write_text(
            f"[realms]\n{REALM} = {{\n  kdc_listen = {HOST}:{self.port}\n  kdc_tcp_listen = {HOST}:{self.port}\n"
            f"  database_name = {folder}/principal\n  key_stash_file = {folder}/stash\n  acl_file = {folder}/acl\n}}\n"
            f"[logging]\nkdc = FILE:{folder}/kdc.log\n"
        )
        self._run(self._kdc.with_name("kdb5_util"), "create", "-s", "-r", REALM, "-P", "master")

    def krb5_conf(self, name: str, port: int) -> str:
        """A client's configuration with a KDC at that port."""
        file = self.folder / name
        file.write_text(
            f"[libdefaults]\ndefault_realm = {REALM}\ndns_lookup_kdc = false\ndns_canonicalize_hostname = false\n"
            f"rdns = false\nudp_preference_limit = 1\n"
            f"[realms]\n{REALM} = {{\n  kdc = {HOST}:{port}\n}}\n"
        )
        return str(file)

    def command(self) -> list[str]:
        variables = [f"{name}={value}" for name, value in self._variables().items()]
        return ["/usr/bin/env", *variables, str(self._kdc), "-n", "-P", str(self.folder / "pid")]

    def serves(self) -> bool:
        try:
            socket.create_connection((HOST, self.port), 1).close()
        except OSError:
            return False
        return True

    def principal(self, name: str, *, life: str = "1 hour") -> str:
        """Make a principal, and return a keytab with its key."""
        self.administer(f'addprinc -randkey -maxlife "{life}" {name}')
        return self.keytab(name)

    def keytab(self, name: str) -> str:
        """A file with the principal's current key."""
        file = self.folder / f"{name.replace('/', '-')}.keytab"
        file.unlink(missing_ok=True)
        self.administer(f"ktadd -norandkey -k {file} {name}")
        return str(file)

    def administer(self, query: str) -> None:
        self._run(self._kadmin, "-r", REALM, "-q", query)

    def kinit(self, name: str, keytab: str) -> None:
        """Renew the ticket cache of `environment`."""
        self._run(self._kinit, "-k", "-t", keytab, name)

    def _variables(self) -> Mapping[str, str]:
        return {**self.environment, "KRB5_KDC_PROFILE": str(self.folder / "kdc.conf")}

    def _run(self, *command: str | Path) -> None:
        done = subprocess.run(command, env=os.environ | self._variables(), capture_output=True, text=True, timeout=60)
        # kadmin.local ends with 0 whatever has failed.
        assert done.returncode == 0, done.stdout + done.stderr
        assert not any(each.split(":")[0] in ("add_principal", "kadmin.local") for each in done.stderr.splitlines()), (
            done.stderr
        )


@contextmanager
def realm(folder: Path, java: Path) -> Iterator[Realm]:
    """Skips the test where Kerberos is not installed."""
    try:
        import gssapi  # noqa: F401
    except ImportError:
        give_up("gssapi", "apt-get install libkrb5-dev gcc && .venv/bin/pip install gssapi")
    if "jdk.security.jgss" not in subprocess.run([java, "--list-modules"], capture_output=True, text=True).stdout:
        give_up("a Java with Kerberos", "apt-get install openjdk-21-jdk-headless, or openjdk-17-jdk-headless")
    running = Realm(folder)
    running.start()
    try:
        running.wait_ready()
        with pytest.MonkeyPatch.context() as patch:
            for name, value in running.environment.items():
                patch.setenv(name, value)
            yield running
    finally:
        running.kill()


class KerberosZooKeeper(ZooKeeperServer):
    """Clients that do not authenticate get no answer."""

    def __init__(self, folder: Path, servers: Servers, realm: Realm) -> None:
        super().__init__(folder, servers.java, resolve_jars(NEWEST.jars))
        self._realm = realm

    def command(self) -> list[str]:
        java, *flags, file = super().command()
        service = f"zookeeper/{HOST}"
        with Path(file).open("a") as config:
            config.write("authProvider.sasl=org.apache.zookeeper.server.auth.SASLAuthenticationProvider\n")
            config.write("sessionRequireClientSASLAuth=true\n")
        return [java, *java_flags(self._realm, self.folder, "Server", service), *flags, file]


def kerberos_cluster(servers: Servers, realm: Realm, version: str) -> Cluster:
    """With the listeners KERBEROS, and SHORT, which ends sessions after two seconds (from 2.2 on)."""
    listeners = {"KERBEROS": "SASL_PLAINTEXT", "SHORT": "SASL_PLAINTEXT"}
    config = {
        "sasl.enabled.mechanisms": "GSSAPI",
        "sasl.kerberos.service.name": "kafka",
        "listener.name.short.gssapi.connections.max.reauth.ms": "2000",
    }
    name = f"kerberos-{version}"
    folder = servers.folder / name
    folder.mkdir()
    flags = java_flags(realm, folder, "KafkaServer", f"kafka/{HOST}")
    tuning = (*QUICK_START, *flags, "-Dzookeeper.sasl.client=false")
    return servers.cluster(name, version, config=config, listeners=listeners, tuning=tuning)


def java_flags(realm: Realm, folder: Path, section: str, service: str) -> list[str]:
    """For a server that authenticates as that principal."""
    jaas = folder / "jaas.conf"
    module = "com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true storeKey=true useTicketCache=false"
    jaas.write_text(f'{section} {{\n  {module} keyTab="{realm.keytab(service)}" principal="{service}@{REALM}";\n}};\n')
    return [f"-Djava.security.auth.login.config={jaas}", f"-Djava.security.krb5.conf={realm.configuration}"]
