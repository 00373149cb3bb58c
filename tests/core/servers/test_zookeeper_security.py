"""A real ZooKeeper with TLS and users: what works, the errors for what does not, and who owns which nodes."""

from __future__ import annotations

import base64
import functools
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import msgspec
import pytest
from cryptography.hazmat.primitives import serialization

from kzconsumer import ConsumerConnector, connect
from kzconsumer.errors import ConfigError, ConnectionLostError, NotPermittedError
from kzconsumer.registry.cluster import open_session
from kzconsumer.settings.settings import Settings
from kzconsumer.status.status_server import DOCUMENTS, SHOW_NOTHING
from kzconsumer.zookeeper.operations import Create, Delete
from kzconsumer.zookeeper.session import ZooKeeperSession
from kzconsumer_sandbox.servers.configuration import HOST
from kzconsumer_sandbox.servers.kafka_servers import Cluster, ZooKeeperServer
from kzconsumer_sandbox.servers.topic_creation import create_topic
from tests.support.command_line import CommandLine
from tests.support.consuming import take
from tests.support.extent import extent
from tests.support.original import console_consumer
from tests.support.processes import session_of
from tests.support.producing import produce
from tests.support.proxy import FaultProxy
from tests.support.secured import PLAIN_PASSWORD, Secured
from tests.support.secured_zookeeper import PASSWORDS, SecuredZooKeeper, secured_zookeeper
from tests.support.servers import Servers
from tests.support.zookeeper_sessions import readable, until

LIMIT = 30.0
ALL_PASSWORDS = (PLAIN_PASSWORD, *PASSWORDS.values())
OPEN = [("world", "anyone", 31)]


@pytest.fixture(scope="module")
def secure(servers: Servers, secured: Secured, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredZooKeeper]:
    with secured_zookeeper(servers, secured, tmp_path_factory.mktemp("zookeeper")) as running:
        yield running


@pytest.fixture(scope="module")
def cluster(secured: Secured, secure: SecuredZooKeeper) -> Cluster:
    return secured.cluster("users", "1.1.1", secure)


@asynccontextmanager
async def opened(table: Mapping[str, object]) -> AsyncIterator[ZooKeeperSession]:
    session = open_session(settings(table).zookeeper)
    with anyio.fail_after(LIMIT):
        await session.__aenter__()
    try:
        yield session
    finally:
        await session.close()


def settings(zookeeper: Mapping[str, object], group: str = "g", **tables: Mapping[str, object]) -> Settings:
    return Settings.from_dict({"zookeeper": zookeeper, "group": {"id": group}, **tables}, source="group.toml")


def written(folder: Path, zookeeper: Mapping[str, object], group: str = "g", **tables: Mapping[str, object]) -> str:
    """A group's file with that table, and others."""

    def lines(table: Mapping[str, Any], name: str) -> Iterator[str]:
        yield f"[{name}]"
        yield from (
            f'"{key}" = {msgspec.json.encode(value).decode()}'
            for key, value in table.items()
            if type(value) is not dict
        )
        for key, value in table.items():
            if type(value) is dict:
                yield from lines(value, f"{name}.{key}")

    file = folder / "group.toml"
    all_tables = {"zookeeper": zookeeper, "group": {"id": group}, **tables}
    file.write_text("\n".join(line for name, table in all_tables.items() for line in lines(table, name)) + "\n")
    return str(file)


async def acl(session: ZooKeeperSession, path: str) -> list[tuple[str, str, int]]:
    """Scheme, id and permissions of a node's ACL, sorted."""
    return sorted((scheme, user, permissions) for permissions, scheme, user in await session.acl(path))


async def test_every_authentication_and_the_owner_of_its_nodes(secure: SecuredZooKeeper, unique: str) -> None:
    bob = [("sasl", "bob", 31)]
    readable = [*bob, ("world", "anyone", 1)]
    root = f"/consumers/{unique}"
    ways: list[tuple[dict[str, object] | None, str, list[tuple[str, str, int]]]] = [
        (None, "open", OPEN),
        (None, "creator-writes", readable),
        ({}, "creator-only", [*bob, ("x509", "CN=?", 31)]),
    ]
    for tls, acls, expected in ways:
        async with opened(secure.table(tls=tls, user="bob", acl=acls)) as session:
            await session.ensure(f"{root}-{acls}/ids")
            await session.create(f"{root}-{acls}/ids/one", b"", ephemeral=True)
            await session.multi([Create(f"{root}-{acls}/two", b"")])
            for node in ("", "/ids", "/ids/one", "/two"):
                found = [(s, "CN=?" if s == "x509" else i, p) for s, i, p in await acl(session, f"{root}-{acls}{node}")]
                assert found == expected, (acls, node)
            assert await acl(session, "/consumers") == OPEN, "other groups' members make nodes there, too"
    async with opened(secure.table()) as nobody:
        assert (await nobody.get(f"{root}-creator-writes/two")).data == b""
        with pytest.raises(NotPermittedError, match=r"/two: not permitted: .*\[zookeeper.sasl\]"):
            await nobody.set(f"{root}-creator-writes/two", b"mine", -1)
        with pytest.raises(NotPermittedError):
            await nobody.get(f"{root}-creator-only/two")
    async with opened(secure.table(user="eve")) as eve:
        with pytest.raises(NotPermittedError):
            await eve.set(f"{root}-creator-writes/two", b"mine", -1)

    digested = functools.partial(secure.table, user="bob", scheme="digest")
    async with opened(digested(acl="creator-only")) as session:
        await session.ensure(f"{root}-digest")
        ((scheme, name, _),) = await acl(session, f"{root}-digest")
        assert (scheme, name.partition(":")[0]) == ("digest", "bob")
    async with opened(digested(acl="creator-writes")) as session:
        await session.ensure(f"{root}-kept")
        kept = await session.acl(f"{root}-kept")
    async with opened(digested(acl="open")) as session, opened(secure.table()) as nobody:
        await session.multi([Delete(f"{root}-kept", -1), Create(f"{root}-kept", b"", acl=kept)])
        assert await session.acl(f"{root}-kept") == kept
        with pytest.raises(NotPermittedError):  # it is not shown bob's password
            await nobody.acl(f"{root}-kept")
        assert PASSWORDS["bob"] not in name
    async with opened(digested(password="another")) as session:  # is a different user, without an error
        with pytest.raises(NotPermittedError):
            await session.get(f"{root}-digest")


async def test_a_refused_client_reports_the_reason_in_one_line(
    secure: SecuredZooKeeper,
    secured: Secured,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """At once and with exit status 78 if the settings must change; what may be a restarting server is retried."""
    import_module("kzconsumer_tools.groups.cluster_access")  # it keeps the limit that there is when it is imported
    monkeypatch.setattr("kzconsumer.registry.cluster.LIMIT", 2.0)
    kzconsumer = CommandLine(capsys)
    tls, plain = f"{HOST}:{secure.secure_port}", secure.connect
    refused = "[zookeeper.sasl] DIGEST-MD5 as {}: the server does not accept it: wrong name or password?"
    unsigned = "its certificate is signed by no authority of [zookeeper.tls] ca"
    other_host = secure.table(tls={}, connect=f"localhost:{secure.secure_port}")
    reason_of_other_host = (
        f"localhost:{secure.secure_port}: its certificate is not for localhost, only for {HOST}: change "
        "[zookeeper] connect, or set [zookeeper.tls] verify_hostname = false"
    )
    cases: list[tuple[dict[str, object], int, str]] = [
        (secure.table(user="bob", password="wrong"), 78, f"{plain}: {refused.format('bob')}"),
        (secure.table(tls={}, user="eve", password="wr\u00f6ng"), 78, f"{tls}: {refused.format('eve')}"),
        (secure.table(tls={"ca": secured.other_ca_file}), 78, f"{tls}: {unsigned}"),
        (secure.table(tls={"ca": None}), 78, f"{tls}: {unsigned}"),
        (secure.table(tls={"certificate": None}), 78, "does this server want [zookeeper.tls] certificate?"),
        (
            secure.table(tls={"certificate": secured.foreign_certificate}),
            78,
            "has [zookeeper.tls] certificate expired, or does this server not trust it?",
        ),
        (other_host, 78, reason_of_other_host),
        (secure.table(tls={"ca": "/no/ca"}), 78, "[zookeeper.tls] ca: /no/ca cannot be read: No such file"),
        (secure.table(acl="creator-only"), 78, "[zookeeper] acl: creator-only needs an identity"),
        (secure.table(connect=tls), 1, "does this port want TLS? ([zookeeper] secure, connect)"),
        (secure.table(tls={}, connect=plain), 1, "hung up in the TLS handshake: does this server speak TLS?"),
    ]
    for table, status, reason in cases:
        done = await kzconsumer("groups", "list", "--config", written(tmp_path, table))
        assert (done.status, done.out) == (status, ""), (table, done)
        assert reason in done.err, table
        assert done.err.count("\n") == 1, done.err
        assert "wr\u00f6ng" not in done.err
    file = written(tmp_path, other_host, subscription={"topics": {"t": 1}}, sink={"plugin": "jsonlines"})
    daemon = [sys.executable, "-m", "kzconsumer", "run", file]
    ended = await anyio.run_process(daemon, check=False)
    assert (ended.returncode, ended.stderr.decode().count(reason_of_other_host)) == (78, 1), ended.stderr
    async with opened(secure.table(tls={"verify_hostname": False}, connect=f"localhost:{secure.secure_port}")):
        pass


async def test_a_server_that_requires_authentication(
    servers: Servers, secured: Secured, zookeeper: ZooKeeperServer, tmp_path: Path
) -> None:
    """Its handshake accepts every client, and the first request is refused. A server without SASL refuses nobody: we
    do.
    """
    with secured_zookeeper(servers, secured, tmp_path, sasl_required=True) as strict:
        async with opened(strict.table(user="eve")) as session:
            await session.ensure("/consumers")
        with pytest.raises(ConfigError, match=r"the server requires SASL: \[zookeeper.sasl\]"):
            await asked(strict.table())
    with pytest.raises(ConfigError, match="has its JAAS configuration a section Server"):
        await asked(strict.table(user="eve", connect=zookeeper.connect))


async def asked(table: Mapping[str, object]) -> None:
    """A request that any user may send, to a server that accepts us."""
    async with opened(table) as session:
        await session.sync()


async def test_a_session_authenticates_first_on_every_connection(
    secure: SecuredZooKeeper, unique: str, tmp_path: Path
) -> None:
    """Its nodes are closed to others, and a request that waits for the connection is sent after the credentials.

    A server that no longer accepts us is retried: passwords are also changed under running members.
    """
    path = f"/consumers/{unique}"
    async with FaultProxy(HOST, secure.port) as proxy:
        for scheme in ("sasl", "digest"):
            table = secure.table(user="bob", scheme=scheme, acl="creator-only", connect=proxy.connect)
            async with opened(table) as session:
                await session.ensure(f"{path}-{scheme}")
                for _ in range(3):
                    accepted = proxy.accepted
                    proxy.reset()
                    with anyio.fail_after(LIMIT):
                        await readable(session, f"{path}-{scheme}")
                    assert proxy.accepted > accepted
        table = secure.table(user="bob", connect=proxy.connect)
        password = tmp_path / "password"
        password.write_text(PASSWORDS["bob"])
        table["sasl"] = {"username": "bob", "password_file": str(password)}
        async with opened(table) as session:
            await session.sync()
            await until(session.trusted)
            password.write_text("another")
            proxy.reset()
            await until(lambda: "wrong name or password?" in session.why_refused, LIMIT)
            password.write_text(PASSWORDS["bob"])
            with anyio.fail_after(LIMIT):
                await readable(session, "/")


async def test_a_group_that_other_users_cannot_read(
    secure: SecuredZooKeeper,
    cluster: Cluster,
    unique: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Over TLS, on one connection after the other; the commands read it with the group's file, and not without."""
    await create_topic(cluster.connect, unique, 1)
    table = secure.table(tls={}, user="bob", acl="creator-only", connect=f"{HOST}:{secure.secure_port}/users")
    proxy = FaultProxy(HOST, secure.secure_port)

    async def send(value: bytes) -> None:
        await anyio.to_thread.run_sync(lambda: produce(cluster.bootstrap, "1.1.1", unique, [(0, None, value)]))

    async with proxy, connect(settings(table | {"connect": f"{proxy.connect}/users"}, unique)) as consumer:
        with anyio.fail_after(LIMIT):
            ((stream,),) = (await consumer.create_message_streams({unique: 1})).values()
        await send(b"one")
        assert [each.value for each in await take(stream, 1)] == [b"one"]
        stream.ack()
        await consumer.commit()

        kzconsumer = CommandLine(capsys, "--config", written(tmp_path, table, unique))
        for words in (("groups", "describe"), ("offsets", "show"), ("lag",), ("groups", "doctor")):
            done = await kzconsumer(*words)
            assert (done.status, done.err) == (0, ""), (words, done)
            assert unique[:20] in done.out
        stranger = CommandLine(capsys, "--zookeeper", cluster.connect)
        done = await stranger("groups", "describe", unique)
        assert done.status == 1
        assert "not permitted: the ACL there is for another user" in done.err

        accepted = proxy.accepted
        proxy.reset()
        await send(b"two")
        assert [each.value for each in await take(stream, 1)] == [b"two"]
        stream.ack()
        with anyio.fail_after(LIMIT):
            await commit(consumer)
        assert proxy.accepted > accepted
    async with opened(table) as session:
        assert (await session.get(f"/consumers/{unique}/offsets/{unique}/0")).data == b"2"


async def commit(consumer: ConsumerConnector) -> None:
    while True:
        try:
            await consumer.commit()
        except ConnectionLostError:
            continue
        return


async def test_beside_an_original_member_that_has_logged_in(
    servers: Servers,
    secure: SecuredZooKeeper,
    cluster: Cluster,
    unique: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Both own their part of the topic. With creator-writes our nodes have an ACL; otherwise ours are open."""
    await create_topic(cluster.connect, unique, 2)
    jaas = tmp_path / "client.conf"
    login = "org.apache.zookeeper.server.auth.DigestLoginModule required"
    jaas.write_text(f'Client {{\n{login} username="bob" password="{PASSWORDS["bob"]}";\n}};\n')
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", f"-Djava.security.auth.login.config={jaas}")
    table = secure.table(user="bob", connect=cluster.connect)
    root = f"/consumers/{unique}"
    with console_consumer(servers, cluster, unique, unique, tmp_path / "original") as original:
        async with opened(table) as session:
            await until(lambda: original.logged("selected partitions"), LIMIT)
            async with connect(settings(table, unique)) as consumer:
                with anyio.fail_after(LIMIT):
                    await consumer.create_message_streams({unique: 1})
                    while True:
                        nodes = [await session.find(f"{root}/owners/{unique}/{number}") for number in (0, 1)]
                        owners = sorted(node.data.decode() for node in nodes if node)
                        if len(owners) == 2 and len(set(owners)) == 2:
                            break
                        await anyio.sleep(0.05)
                acls = {
                    node.data.decode(): await acl(session, f"{root}/owners/{unique}/{number}")
                    for number, node in enumerate(nodes)
                    if node
                }
                assert acls.pop(original.thread()) == [("sasl", "bob", 31), ("world", "anyone", 1)]
                assert list(acls.values()) == [OPEN]
                assert await acl(session, f"{root}/ids/{original.consumer}") == OPEN


SECRETS = ("in secret", "b's secret", "PLANTED", *(base64.b64encode(each.encode()).decode() for each in ALL_PASSWORDS))
"""A part of the passwords in any encoding, and the other secrets that this test plants."""
RECORD = b"PLANTED-record"
PAGES = (*SHOW_NOTHING, "/metrics", "/health/live", "/health/ready", *(f"/api/v1/{name}" for name in DOCUMENTS))


async def test_no_secret_is_shown(
    secure: SecuredZooKeeper,
    secured: Secured,
    cluster: Cluster,
    unique: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Not in arguments, output, log, status or tracebacks of daemon and commands, with and without errors; nor is the
    content of records.
    """
    await create_topic(cluster.connect, unique, 1)
    await anyio.to_thread.run_sync(lambda: produce(cluster.bootstrap, "1.1.1", unique, [(0, RECORD, RECORD)]))
    monkeypatch.setenv("KEY_PASSWORD", "PLANTED-key")
    token = secured.file("token", "PLANTED-token")
    tls = {"certificate": encrypted(secured, "PLANTED-key"), "key_password_env": "KEY_PASSWORD"}
    right: dict[str, Mapping[str, object]] = {
        "zookeeper": secure.table(tls=tls, user="bob", connect=f"{HOST}:{secure.secure_port}/users")
        | {"digest": {"username": "eve", "password_file": secured.file("digest", "PLANTED-digest")}},
        "brokers": secured.table(cluster, "SASL_SSL", "PLAIN"),
        "subscription": {"topics": {unique: 1}},
        "offsets": {"commit_interval": "200ms"},
        "status": {"listen": f"unix:{tmp_path}/status", "token_file": token},
        "log": {"level": "debug", "format": "json", "progress_interval": "200ms"},
        "sink": {"plugin": "jsonlines"},
    }
    wrong_broker = secured.table(
        cluster, "SASL_SSL", "PLAIN", sasl={"password_file": secured.file("w", "PLANTED-wrong")}
    )
    wrong_zookeeper = secure.table(user="bob", password="PLANTED-wrong")
    shown: list[str] = []

    def file(**changes: Mapping[str, object]) -> str:
        tables = {**right, **changes}
        group = tables.pop("group", {"id": unique})["id"]
        return written(tmp_path, tables.pop("zookeeper"), str(group), **tables)

    async def run(status: int, until_reported: str, **changes: Mapping[str, object]) -> None:
        """A daemon that is stopped once it has logged that, or that ends by itself with a status other than 0."""
        out = tmp_path / "out"
        process = started(file(**changes), out)
        try:
            await until(lambda: until_reported in out.read_text() or process.poll() is not None, LIMIT)
            if status == 0:  # otherwise it ends by itself, not by a signal sent in addition
                shown.extend(Path(f"/proc/{each}/cmdline").read_text() for each in session_of(process.pid))
                shown.extend(await status_pages(f"{tmp_path}/status"))
                process.terminate()
            assert await anyio.to_thread.run_sync(process.wait, LIMIT) == status, out.read_text()
        finally:
            process.kill()
            process.wait()
        shown.append(out.read_text())
        assert until_reported in shown[-1]
        shown.append(out.with_name("records").read_text().replace(RECORD.decode(), ""))

    await run(0, "progress")
    await run(0, "no secure connection", brokers=wrong_broker, log={"level": "debug", "format": "console"})
    failing = {"plugin": "callable", "options": {"function": "tests.support.sinks:repeat_a_secret"}}
    for format in extent(("console",), ("json", "console")):  # JSON of everything else: above
        log = {"level": "debug", "format": format}
        await run(1, "nobody answers", sink=failing, log=log, group={"id": f"{unique}-{format}"})

    kzconsumer = CommandLine(capsys)
    commands: list[tuple[str, dict[str, Mapping[str, object]], int | None, str]] = [
        ("check-config --effective", {}, 0, unique),
        ("check-config --effective -o json", {}, 0, unique),
        ("groups describe", {}, 0, unique),
        ("lag", {}, 0, unique),
        ("lag", {"brokers": wrong_broker}, None, "Authentication failed"),
        ("groups list", {"zookeeper": wrong_zookeeper}, 78, "wrong name or password?"),
    ]
    for words, changes, status, output in commands:
        named = [file(**changes)] if words.startswith("check-config") else ["--config", file(**changes)]
        done = await kzconsumer(*words.split(), *named)
        assert status in (None, done.status), (words, done)
        assert output in done.out + done.err, (words, done)
        shown += [done.out, done.err]
    found = [(secret, text) for text in shown for secret in SECRETS if secret in text]
    assert not found, found[0]


def encrypted(secured: Secured, password: str) -> str:
    """A client's certificate with an encrypted key, in one file."""
    issued = secured.ca.issue_cert("client.example")
    key = serialization.load_pem_private_key(issued.private_key_pem.bytes(), None)
    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(password.encode()),
    )
    chain = "".join(each.bytes().decode() for each in issued.cert_chain_pems)
    return secured.file("encrypted.pem", pem.decode() + chain)


def started(config: str, out: Path) -> subprocess.Popen[bytes]:
    """The output of the sink `jsonlines` is in a separate file, `records`."""
    with out.open("wb") as to, out.with_name("records").open("wb") as records:
        command = [sys.executable, "-m", "kzconsumer", "--config", config]
        return subprocess.Popen(command, stdout=records, stderr=to, start_new_session=True)


async def status_pages(socket: str) -> list[str]:
    """Everything that the status serves, with the token and without it."""
    pages = []
    async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(socket)) as client:
        for path in PAGES:
            for token, known in (("PLANTED-token", True), ("wrong", path in SHOW_NOTHING)):
                headers = {"Authorization": f"Bearer {token}"}
                async with client.get(f"http://localhost{path}", headers=headers) as answer:
                    assert (answer.status != 401) == known, path
                    pages.append(f"{answer.headers}" + await answer.text())
    return pages
