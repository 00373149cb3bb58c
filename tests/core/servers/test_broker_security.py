"""Brokers of three generations through each of their listeners: what works, and the errors for what does not."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from typing import Any

import anyio
import pytest
import structlog
from msgspec.structs import replace

from kzconsumer.brokers import pool as brokers_module
from kzconsumer.brokers.connection import BrokerConnection
from kzconsumer.brokers.protocol.cluster_state import MetadataRequest, MetadataResponse
from kzconsumer.brokers.transport import load_security
from kzconsumer.errors import ConnectionLostError, ProtocolError, SecurityError
from kzconsumer.fetcher.fetch_state import FetchState
from kzconsumer.fetcher.leader_finder import LeaderFinder
from kzconsumer.model import Broker, TopicPartition
from kzconsumer.settings.settings import Settings
from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_sandbox.servers.sandbox import start_server, stop_server
from kzconsumer_sandbox.servers.topic_creation import create_topic
from tests.support.consuming import member, take
from tests.support.dead_letters import read_letters
from tests.support.extent import extent, only_nightly
from tests.support.flow import flow
from tests.support.members import sessions_of
from tests.support.producing import produce
from tests.support.secured import ALIKE, PLAIN_PASSWORD, Secured
from tests.support.zookeeper_sessions import until

# One that takes bare tokens: test_kerberos.py.
VERSIONS = (*extent((), (ALIKE, "1.1.1")), "3.9.1")
LIMIT = 20.0

WAYS = [
    ("SSL", None),
    ("MUTUAL", None),
    ("SASL_PLAINTEXT", "PLAIN"),
    ("SASL_PLAINTEXT", "SCRAM-SHA-256"),
    ("SASL_PLAINTEXT", "SCRAM-SHA-512"),
    ("SASL_SSL", "PLAIN"),
    ("SASL_SSL", "SCRAM-SHA-512"),
]


def address(cluster: Cluster, listener: str, host: str = "127.0.0.1") -> Broker:
    broker = cluster.brokers[1]
    return Broker(1, host, broker.port if listener == "PLAINTEXT" else broker.listeners[listener].port)


async def metadata(broker: Broker, table: Mapping[str, object]) -> MetadataResponse:
    """The metadata response of that address with these settings."""
    settings = Settings.from_dict({"zookeeper": {"connect": "z"}, "group": {"id": "g"}, "brokers": table})
    security = load_security(settings.brokers, "test")
    connection = await BrokerConnection.open(broker, client_id="test", timeout=LIMIT, security=security)
    try:
        return await connection.call(MetadataRequest(()), timeout=LIMIT)
    finally:
        connection.close()


@pytest.mark.parametrize("version", VERSIONS)
async def test_metadata_names_the_listener_of_the_request(secured: Secured, version: str) -> None:
    cluster = secured.cluster_of(version)
    for listener, mechanism in [("PLAINTEXT", None), *WAYS]:
        asked = address(cluster, listener)
        answer = await metadata(asked, secured.table(cluster, listener, mechanism))
        assert answer.brokers == {1: replace(asked, cluster=answer.cluster_id or "")}, (listener, mechanism)


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_member_consumes_over_every_listener(secured: Secured, version: str, unique: str) -> None:
    cluster = secured.cluster_of(version)
    await create_topic(cluster.connect, unique, 1)
    values = [b"small", random.Random(1).randbytes(700_000), b"last"]
    await anyio.to_thread.run_sync(produce, cluster.bootstrap, version, unique, [(0, None, each) for each in values])
    taken: dict[tuple[str, str | None], list[bytes | None]] = {}

    async def consume(listener: str, mechanism: str | None) -> None:
        table = secured.table(cluster, listener, mechanism)
        group = f"{unique}-{listener}-{mechanism}"
        async with member(cluster, group, {unique: 1}, brokers=table) as (_, streams):
            taken[listener, mechanism] = [each.value for each in await take(streams[unique][0], len(values))]

    async with anyio.create_task_group() as tasks:
        for way in WAYS:
            tasks.start_soon(consume, *way)
    assert taken == dict.fromkeys(WAYS, values)


# Cases: the listener, the listener and mechanism that the settings are right for, what is changed in them, and
# the expected error, without the broker's address and what precedes the reason.
Case = tuple[str, str, str | None, dict[str, str | bool], dict[str, str], str]
HUNG_UP = r"hung up in the TLS handshake: does this listener speak TLS\? .*"
WANTS_SASL = r"(closed by the broker|.*reset by peer) after ApiVersions: does this listener want SASL\? .*"
SPEAKS_TLS = "this listener speaks TLS: .*"
NO_SASL = r"\[brokers.sasl\] \S+ as \S+: this listener has no SASL: .*"
REFUSALS: dict[str, Case] = {
    "wrong password, PLAIN": (
        "SASL_PLAINTEXT", "SASL_PLAINTEXT", "PLAIN", {}, {"password_file": "wrong"},
        r"\[brokers.sasl\] PLAIN as plain-user: Authentication failed: Invalid username or password .*",
    ),
    "wrong password, SCRAM": (
        "SASL_SSL", "SASL_SSL", "SCRAM-SHA-256", {}, {"password_file": "wrong"},
        r"\[brokers.sasl\] SCRAM-SHA-256 as scram=user,1: Authentication failed .*due to invalid credentials .*",
    ),
    "unknown user": (
        "SASL_SSL", "SASL_SSL", "SCRAM-SHA-512", {}, {"username": "nobody"},
        r"\[brokers.sasl\] SCRAM-SHA-512 as nobody: Authentication failed .*due to invalid credentials .*",
    ),
    "unknown authority": (
        "SSL", "SSL", None, {"ca": "other"}, {},
        r"its certificate is signed by no authority of \[brokers.tls\] ca .*",
    ),
    "no client certificate": (
        "MUTUAL", "MUTUAL", None, {"certificate": ""}, {},
        r"TLS failed \(.*\): does this listener want \[brokers.tls\] certificate\?",
    ),
    "client certificate of another authority": (
        "MUTUAL", "MUTUAL", None, {"certificate": "foreign"}, {},
        r"TLS failed \(.*\): has \[brokers.tls\] certificate expired, or does this listener not trust it\?",
    ),
    "client certificate that has expired": (
        "MUTUAL", "MUTUAL", None, {"certificate": "expired"}, {},
        r"TLS failed \(.*\): has \[brokers.tls\] certificate expired, or does this listener not trust it\?",
    ),
    "expired": ("EXPIRED", "EXPIRED", None, {}, {}, "its certificate has expired"),
    "TLS to plain": ("PLAINTEXT", "SSL", None, {}, {}, HUNG_UP),
    "TLS to SASL": ("SASL_PLAINTEXT", "SSL", None, {}, {}, HUNG_UP),
    "TLS to SASL and TLS": ("SASL_SSL", "SSL", None, {}, {}, WANTS_SASL),
    "plain to TLS": ("SSL", "PLAINTEXT", None, {}, {}, SPEAKS_TLS),
    "plain to SASL": ("SASL_PLAINTEXT", "PLAINTEXT", None, {}, {}, WANTS_SASL),
    "plain to SASL and TLS": ("SASL_SSL", "PLAINTEXT", None, {}, {}, SPEAKS_TLS),
    "SASL to plain": ("PLAINTEXT", "SASL_PLAINTEXT", "PLAIN", {}, {}, NO_SASL),
    "SASL to TLS": ("SSL", "SASL_PLAINTEXT", "PLAIN", {}, {}, SPEAKS_TLS),
    "SASL and TLS to TLS": ("SSL", "SASL_SSL", "SCRAM-SHA-512", {}, {}, NO_SASL),
    "SASL to SASL and TLS": ("SASL_SSL", "SASL_PLAINTEXT", "PLAIN", {}, {}, SPEAKS_TLS),
}  # fmt: skip


@pytest.mark.parametrize("version", VERSIONS)
async def test_errors_of_refused_connections(secured: Secured, version: str) -> None:
    cluster = secured.cluster_of(version)
    files = {
        "wrong": secured.file("wrong-password", "wrong"),
        "other": secured.other_ca_file,
        "foreign": secured.foreign_certificate,
        "expired": secured.expired_certificate,
    }
    for name, (listener, right_for, mechanism, tls, sasl, said) in REFUSALS.items():
        table = secured.table(
            cluster,
            right_for,
            mechanism,
            tls={key: files.get(str(value), value) for key, value in tls.items() if value},
            sasl={key: files.get(value, value) for key, value in sasl.items()},
        )
        if tls.get("certificate") == "":
            table["tls"] = {"ca": secured.ca_file}
        if version == ALIKE:
            if name == "expired":
                continue
            if "Authentication failed" in said:
                said = r".* \S+ as \S+: the broker hung up; those before 1.0 do not say why: wrong name or password\?"
        with pytest.raises((ConnectionLostError, ProtocolError)) as caught:
            await metadata(address(cluster, listener), table)
        reported = str(caught.value)
        assert re.fullmatch(r"broker 1 \(127\.0\.0\.1:\d+\): " + said, reported), (name, reported)


@pytest.mark.parametrize("version", VERSIONS)
async def test_the_host_name_is_verified_unless_disabled(secured: Secured, version: str) -> None:
    cluster = secured.cluster_of(version)
    by_name = address(cluster, "SSL", "localhost")  # the certificate is for 127.0.0.1
    with pytest.raises(ConnectionLostError) as caught:
        await metadata(by_name, secured.table(cluster, "SSL"))
    assert str(caught.value) == (
        f"broker 1 (localhost:{by_name.port}): its certificate is not for localhost, only for 127.0.0.1: change "
        "advertised.listeners of the broker, or set [brokers.tls] verify_hostname = false"
    )
    await metadata(by_name, secured.table(cluster, "SSL", tls={"verify_hostname": False}))
    with pytest.raises(ConnectionLostError, match="no authority"):
        await metadata(
            by_name, secured.table(cluster, "SSL", tls={"verify_hostname": False, "ca": secured.other_ca_file})
        )


async def test_a_mechanism_that_the_listener_does_not_have(secured: Secured) -> None:
    cluster = secured.cluster_of("3.9.1")
    with pytest.raises(
        ConnectionLostError, match=r"SCRAM-SHA-512 as .*: not a mechanism of this listener; it has PLAIN: .*"
    ):
        await metadata(address(cluster, "SHORT"), secured.table(cluster, "SHORT", "SCRAM-SHA-512"))


def lines(reported: Sequence[Mapping[str, object]], event: str) -> list[str]:
    return [str(line.get("reason")) for line in reported if line["event"] == event]


async def test_a_corrected_password_needs_no_restart(
    secured: Secured, unique: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    refusals = 0
    opened = BrokerConnection.open

    async def counted(*arguments: Any, **more: Any) -> BrokerConnection:
        nonlocal refusals
        try:
            return await opened(*arguments, **more)
        except SecurityError:
            refusals += 1
            raise

    monkeypatch.setattr(BrokerConnection, "open", counted)
    monkeypatch.setattr(brokers_module, "PAUSE_AFTER_REFUSAL", 0.1)
    cluster = secured.cluster_of("3.9.1")
    await create_topic(cluster.connect, unique, 1)
    await anyio.to_thread.run_sync(produce, cluster.bootstrap, "3.9.1", unique, [(0, None, b"value")])
    password = secured.file(unique, "wr\u00f6ng")
    table = secured.table(cluster, "SASL_SSL", "PLAIN", sasl={"password_file": password})
    with structlog.testing.capture_logs() as reported:
        async with member(cluster, unique, {unique: 1}, brokers=table) as (_, streams):
            await until(lambda: refusals > 2, LIMIT)
            assert len(lines(reported, "no secure connection")) == 1
            assert "PLAIN as plain-user: Authentication failed" in lines(reported, "no secure connection")[0]
            secured.file(unique, PLAIN_PASSWORD + "\n")
            assert [each.value for each in await take(streams[unique][0], 1)] == [b"value"]
    output = str(reported) + "".join(capfd.readouterr())
    assert "wr\u00f6ng" not in output
    assert PLAIN_PASSWORD not in output


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            {"listener": "ELSEWHERE"},
            "no listener ELSEWHERE ([brokers] listener); it has PLAINTEXT, SSL, MUTUAL (SSL), EXPIRED (SSL), "
            "SASL_PLAINTEXT, SASL_SSL, SHORT (SASL_PLAINTEXT), OAUTH (SASL_PLAINTEXT)",
        ),
        ({"listener": "mutual"}, "listener MUTUAL speaks SSL, not PLAINTEXT ([brokers] security_protocol)"),
    ],
)
async def test_a_missing_listener_is_reported_once(
    secured: Secured, unique: str, change: dict[str, str], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lookups = 0
    look_up = LeaderFinder.look

    async def counted(finder: LeaderFinder, due: dict[TopicPartition, FetchState]) -> None:
        nonlocal lookups
        await look_up(finder, due)
        lookups += 1

    monkeypatch.setattr(LeaderFinder, "look", counted)
    cluster = secured.cluster_of("3.9.1")
    await create_topic(cluster.connect, unique, 1)
    with structlog.testing.capture_logs() as reported:
        async with member(cluster, unique, {unique: 1}, brokers=change):
            await until(lambda: lookups > 2, LIMIT)
    assert lines(reported, "broker unusable") == [reason]
    assert lines(reported, "no broker returned a leader") == [f"broker 1: {reason}"]


@only_nightly  # the test below; lost connections: test_cut_connections.py; restarted brokers: test_log_replaced.py
async def test_connections_to_a_restarted_broker_are_reopened(secured: Secured, unique: str) -> None:
    cluster = secured.cluster_of("3.9.1")
    await create_topic(cluster.connect, unique, 1)
    await anyio.to_thread.run_sync(produce, cluster.bootstrap, "3.9.1", unique, [(0, None, b"before")])
    table = secured.table(cluster, "SASL_SSL", "SCRAM-SHA-256")
    async with member(cluster, unique, {unique: 1}, brokers=table) as (_, streams):
        assert [each.value for each in await take(streams[unique][0], 1)] == [b"before"]
        await stop_server(cluster.brokers[1])
        await start_server(cluster.brokers[1])
        await anyio.to_thread.run_sync(produce, cluster.bootstrap, "3.9.1", unique, [(0, None, b"after")])
        assert [each.value for each in await take(streams[unique][0], 1)] == [b"after"]


async def test_connections_are_renewed_before_the_broker_ends_them(secured: Secured, unique: str) -> None:
    """SHORT accepts a password for two seconds, and ends a connection at the first request after that.

    That would be logged as a lost broker, three times here; once may be a busy machine.
    """
    cluster = secured.cluster_of("3.9.1")
    await create_topic(cluster.connect, unique, 1)
    table = secured.table(cluster, "SHORT", "PLAIN")
    with structlog.testing.capture_logs() as reported, flow(cluster, unique, 1) as sent:
        async with member(cluster, unique, {unique: 1}, brokers=table) as (_, streams):
            offsets = [each.offset for each in await take(streams[unique][0], 2600)]  # 400 a second
        sent.end()
    assert offsets == list(range(2600))
    assert len(lines(reported, "broker lost")) <= 1


@pytest.mark.parametrize("version", extent(["3.9.1"], ["3.9.1", ALIKE]))
async def test_dead_letters_go_over_the_same_listener(secured: Secured, version: str, unique: str) -> None:
    """A broker that stores no headers gets none, and that is logged."""
    cluster, letters = secured.cluster_of(version), f"{unique}-letters"
    for topic in (unique, letters):
        await create_topic(cluster.connect, topic, 1)
    await anyio.to_thread.run_sync(produce, cluster.bootstrap, version, unique, [(0, b"k", b"poison")])
    table = secured.table(cluster, "SASL_SSL", "SCRAM-SHA-512")
    rejected = {"policy": "dead-letter", "topic": letters}
    with structlog.testing.capture_logs() as reported:
        async with (
            member(cluster, unique, {unique: 1}, brokers=table, rejected=rejected) as (consumer, streams),
            anyio.create_task_group() as tasks,
        ):
            (message,) = await take(streams[unique][0], 1)
            tasks.start_soon(streams[unique][0].reject, message, "of no use")
            if version == ALIKE:
                await until(lambda: any("stores no headers" in str(line.get("reason")) for line in reported), LIMIT)
                assert not sessions_of(consumer).counters.rejected
                tasks.cancel_scope.cancel()
    if version != ALIKE:
        (letter,) = await anyio.to_thread.run_sync(read_letters, cluster.bootstrap, letters, 1)
        assert (letter.key, letter.value, letter.original_offset) == (b"k", b"poison", 0)
