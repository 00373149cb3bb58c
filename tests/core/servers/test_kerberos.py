"""Brokers and a ZooKeeper that demand Kerberos, with a real KDC: tickets that expire, and what errors say."""

from __future__ import annotations

import re
import shutil
import signal
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
import structlog

from kzconsumer.brokers.connection import BrokerConnection
from kzconsumer.brokers.protocol.cluster_state import MetadataRequest
from kzconsumer.brokers.transport import load_security
from kzconsumer.errors import ConfigError, ConnectionLostError, NotPermittedError, SecurityError
from kzconsumer.model import Broker
from kzconsumer.registry.cluster import open_session
from kzconsumer.settings.settings import Settings
from kzconsumer.zookeeper.session import ZooKeeperSession
from kzconsumer_sandbox.servers.configuration import HOST
from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_sandbox.servers.topic_creation import create_topic
from tests.support.consuming import member, take
from tests.support.flow import flow
from tests.support.kerberos import KerberosZooKeeper, Realm, kerberos_cluster, realm
from tests.support.producing import produce
from tests.support.servers import Servers
from tests.support.zookeeper_sessions import readable, until

LIMIT = 30.0


@pytest.fixture(scope="module")
def kdc(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Realm]:
    with realm(tmp_path_factory.mktemp("kdc"), servers.java) as running:
        for service in ("kafka", "zookeeper"):
            running.principal(f"{service}/{HOST}")
        yield running


@pytest.fixture(scope="module")
def keytab(kdc: Realm) -> str:
    """Of the principal `member`."""
    return kdc.principal("member")


@pytest.fixture(scope="module")
def cluster(servers: Servers, kdc: Realm) -> Cluster:
    return kerberos_cluster(servers, kdc, "3.9.1")


@pytest.fixture(scope="module")
def zookeeper(servers: Servers, kdc: Realm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KerberosZooKeeper]:
    server = KerberosZooKeeper(tmp_path_factory.mktemp("zookeeper"), servers, kdc)
    server.start()
    try:
        server.wait_ready()
        yield server
    finally:
        server.kill()


def brokers(listener: str = "KERBEROS", **sasl: str) -> dict[str, object]:
    """The settings' table."""
    return {"security_protocol": "SASL_PLAINTEXT", "listener": listener, "sasl": {"mechanism": "GSSAPI", **sasl}}


async def ask(cluster: Cluster, table: Mapping[str, object], host: str = HOST, limit: float = LIMIT) -> None:
    """A request over that listener."""
    settings = Settings.from_dict({"zookeeper": {"connect": "z"}, "group": {"id": "g"}, "brokers": table})
    port = cluster.brokers[1].listeners[str(table["listener"])].port
    security = await anyio.to_thread.run_sync(load_security, settings.brokers, "test")
    connection = await BrokerConnection.open(Broker(1, host, port), client_id="test", timeout=limit, security=security)
    try:
        await connection.call(MetadataRequest(()), timeout=LIMIT)
    finally:
        connection.close()


async def test_a_member_consumes(cluster: Cluster, keytab: str, unique: str) -> None:
    await create_topic(cluster.connect, unique, 1)
    await anyio.to_thread.run_sync(produce, cluster.bootstrap, "3.9.1", unique, [(0, None, b"value")])
    table = brokers(principal="member", keytab=keytab)
    async with member(cluster, unique, {unique: 1}, brokers=table) as (_, streams):
        assert [each.value for each in await take(streams[unique][0], 1)] == [b"value"]


async def test_a_broker_that_takes_bare_tokens(servers: Servers, kdc: Realm, keytab: str, unique: str) -> None:
    """0.10.2 does not answer the last one."""
    old = kerberos_cluster(servers, kdc, "0.10.2.2")
    await ask(old, brokers(principal="member", keytab=keytab))
    with pytest.raises(SecurityError, match=r"GSSAPI as member: .*not found in Kerberos database"):
        await ask(old, brokers(principal="member", keytab=keytab, service_name="kafkas"))


async def test_tickets_are_renewed_with_the_keytab(kdc: Realm, cluster: Cluster, unique: str) -> None:
    """A ticket lives for three seconds, and a connection for two: the member outlives two tickets."""
    keytab = kdc.principal("short-lived", life="3 seconds")
    await create_topic(cluster.connect, unique, 1)
    table = brokers("SHORT", principal="short-lived", keytab=keytab)
    with structlog.testing.capture_logs() as reported, flow(cluster, unique, 1) as sent:
        async with member(cluster, unique, {unique: 1}, brokers=table) as (_, streams):
            offsets = [each.offset for each in await take(streams[unique][0], 3200)]  # 400 a second
        sent.end()
    assert offsets == list(range(3200))
    assert not reasons(reported)


async def test_an_expired_ticket_cache_is_reported_until_kinit_renews_it(
    kdc: Realm, cluster: Cluster, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kzconsumer.brokers.pool.PAUSE_AFTER_REFUSAL", 0.2)
    keytab = kdc.principal("brief", life="3 seconds")
    kdc.kinit("brief", keytab)
    await create_topic(cluster.connect, unique, 1)
    with structlog.testing.capture_logs() as reported, flow(cluster, unique, 1) as sent:
        async with member(cluster, unique, {unique: 1}, brokers=brokers("SHORT")) as (_, streams):
            first = await take(streams[unique][0], 100)
            await until(lambda: bool(reasons(reported)), LIMIT)
            assert "GSSAPI with the ticket cache: Ticket expired" in reasons(reported)[0]
            assert reasons(reported)[0].endswith("renew the ticket cache with kinit, or set keytab and principal")
            kdc.kinit("brief", keytab)
            rest = await take(streams[unique][0], 1900)
        sent.end()
    assert [each.offset for each in (*first, *rest)] == list(range(2000))


def reasons(reported: Sequence[Mapping[str, object]]) -> list[str]:
    return [str(line["reason"]) for line in reported if line["event"] == "no secure connection"]


async def test_each_error_says_what_to_check(
    kdc: Realm, cluster: Cluster, keytab: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rekeyed, deleted = kdc.principal("rekeyed"), kdc.principal("deleted")
    kdc.administer("cpw -randkey rekeyed")
    kdc.administer("delprinc -force deleted")
    mine = {"principal": "member", "keytab": keytab}
    no_key = r"check whether keytab has a key of principal \(klist -k\), the realm, and the clocks"
    cases: list[tuple[dict[str, str], str]] = [
        ({"principal": "nobody", "keytab": keytab}, f"No credentials cache found .*: {no_key}"),
        ({"principal": "member@ELSEWHERE", "keytab": keytab}, f".*: {no_key}"),
        (
            {"principal": "deleted", "keytab": deleted},
            ".* not found in Kerberos database .*: check principal and its .*",
        ),
        ({"principal": "rekeyed", "keytab": rekeyed}, ".*: check keytab: its key is not .* current one"),
        (
            mine | {"service_name": "kafkas"},
            r"Server kafkas/127\.0\.0\.1@TEST\.EXAMPLE not found .*: check whether the .*",
        ),
        (
            {"ticket_cache": f"FILE:{tmp_path}/none"},
            r"No credentials cache found .*: check the ticket cache \(klist\): .*",
        ),
    ]
    for sasl, said in cases:
        await refused(cluster, sasl, said)
    monkeypatch.setenv("KRB5_CONFIG", kdc.krb5_conf("no-kdc.conf", 1))
    other = shutil.copy(keytab, tmp_path / "other")  # for which there is no ticket yet
    await refused(cluster, mine | {"keytab": str(other)}, "Cannot contact any KDC for realm .*: check the realm, .*")


async def test_a_kdc_that_does_not_answer_does_not_stop_the_event_loop(kdc: Realm, cluster: Cluster) -> None:
    table = brokers(principal="patient", keytab=kdc.principal("patient"))
    longest = 0.0

    async def watch() -> None:
        nonlocal longest
        while True:
            began = anyio.current_time()
            await anyio.sleep(0.01)
            longest = max(longest, anyio.current_time() - began)

    kdc.send_signal(signal.SIGSTOP)
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch)
            with pytest.raises(ConnectionLostError, match="not connected within 2 s"):
                await ask(cluster, table, limit=2.0)
            tasks.cancel_scope.cancel()
    finally:
        kdc.send_signal(signal.SIGCONT)
    assert longest < 1.0
    await ask(cluster, table)


async def test_a_server_without_the_key(kdc: Realm, cluster: Cluster, keytab: str) -> None:
    """What it answers says nothing about keys and clocks."""
    kdc.principal("kafka/localhost")
    said = r".*\(SASL_AUTHENTICATION_FAILED\): check this machine's clock, .* keytab has its current key"
    await refused(cluster, {"principal": "member", "keytab": keytab}, said, "localhost")


async def refused(cluster: Cluster, sasl: dict[str, str], said: str, host: str = HOST) -> None:
    who = f"as {sasl['principal']}" if "principal" in sasl else "with the ticket cache"
    with pytest.raises(SecurityError) as caught:
        await ask(cluster, brokers(**sasl), host)
    where = rf"broker 1 \(\S+\): \[brokers.sasl\] GSSAPI {who}: "
    assert re.fullmatch(where + said, str(caught.value)), str(caught.value)


async def test_zookeeper(zookeeper: KerberosZooKeeper, kdc: Realm, unique: str) -> None:
    """Its nodes belong to the principal, also after another connection."""
    keytab = kdc.principal("owner")
    table = {"connect": zookeeper.connect, "acl": "creator-only"}
    sasl = {"mechanism": "GSSAPI", "principal": "owner", "keytab": keytab}
    async with session(table | {"sasl": sasl}) as owner:
        await owner.ensure(f"/consumers/{unique}")
        zookeeper.kill()
        zookeeper.start()
        await anyio.to_thread.run_sync(zookeeper.wait_ready)
        with anyio.fail_after(LIMIT):
            await readable(owner, f"/consumers/{unique}")
    stranger = sasl | {"principal": "stranger", "keytab": kdc.principal("stranger")}
    async with session(table | {"sasl": stranger}) as other:
        with pytest.raises(NotPermittedError):
            await other.get(f"/consumers/{unique}")


async def test_what_zookeeper_refuses(zookeeper: KerberosZooKeeper, keytab: str, kdc: Realm) -> None:
    kdc.principal("zookeeper/localhost")
    sasl = {"mechanism": "GSSAPI", "principal": "member", "keytab": keytab}
    begin = rf"{zookeeper.connect}: \[zookeeper.sasl\] GSSAPI as member: Server zk/"
    by_name = zookeeper.connect.replace(HOST, "localhost")
    cases: list[tuple[dict[str, object], str]] = [
        (
            {"sasl": sasl | {"service_name": "zk"}},
            begin + r"\S+ not found .*: check .* service_name, .*",
        ),
        ({"sasl": sasl, "connect": by_name}, "the server does not accept it: check this machine's clock, .*"),
        ({}, r"the server requires SASL: \[zookeeper.sasl\]"),
    ]
    for changes, said in cases:
        with pytest.raises(ConfigError, match=said):
            async with session({"connect": zookeeper.connect, **changes}) as refused:
                await refused.sync()


@asynccontextmanager
async def session(table: Mapping[str, object]) -> AsyncIterator[ZooKeeperSession]:
    settings = Settings.from_dict({"zookeeper": table, "group": {"id": "g"}}, source="group.toml")
    opened = open_session(settings.zookeeper)
    with anyio.fail_after(LIMIT):
        await opened.__aenter__()
    try:
        yield opened
    finally:
        await opened.close()
