"""A broker that takes OAuth tokens: from a file and from a command, renewed before they expire, and refused ones."""

from __future__ import annotations

import base64
import json
import re
import sys
import time
from collections.abc import Mapping
from itertools import count
from pathlib import Path

import anyio
import pytest
import structlog
from anyio.abc import TaskStatus

from kzconsumer.brokers.connection import BrokerConnection
from kzconsumer.brokers.protocol.cluster_state import MetadataRequest
from kzconsumer.brokers.transport import load_security
from kzconsumer.errors import SecurityError
from kzconsumer.model import Broker
from kzconsumer.settings.settings import Settings
from kzconsumer_sandbox.servers.configuration import HOST
from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_sandbox.servers.topic_creation import create_topic
from tests.support.consuming import member, take
from tests.support.dead_letters import read_letters
from tests.support.flow import flow
from tests.support.producing import produce
from tests.support.secured import Secured
from tests.support.zookeeper_sessions import until

LIMIT = 30.0


@pytest.fixture
def cluster(secured: Secured) -> Cluster:
    return secured.cluster_of("3.9.1")


def token(life: float = 3600.0) -> str:
    """Valid for that many seconds, without a signature."""
    claims = {"sub": "member", "iat": time.time() - 60, "exp": time.time() + life}
    parts = (json.dumps(each).encode() for each in ({"alg": "none"}, claims))
    return ".".join(base64.urlsafe_b64encode(each).decode().rstrip("=") for each in parts) + "."


def brokers(**sasl: object) -> dict[str, object]:
    """The settings' table."""
    identity = {"mechanism": "OAUTHBEARER", **sasl}
    return {"security_protocol": "SASL_PLAINTEXT", "listener": "OAUTH", "sasl": identity}


async def ask(cluster: Cluster, table: Mapping[str, object]) -> None:
    settings = Settings.from_dict({"zookeeper": {"connect": "z"}, "group": {"id": "g"}, "brokers": table})
    broker = Broker(1, HOST, cluster.brokers[1].listeners["OAUTH"].port)
    security = load_security(settings.brokers, "test")
    connection = await BrokerConnection.open(broker, client_id="test", timeout=LIMIT, security=security)
    try:
        await connection.call(MetadataRequest(()), timeout=LIMIT)
    finally:
        connection.close()


async def test_a_token_is_read_again_before_it_expires(cluster: Cluster, unique: str, tmp_path: Path) -> None:
    """The broker ends connections when the token of three seconds has expired; without another, that is reported."""
    await create_topic(cluster.connect, unique, 1)
    file = tmp_path / "token"

    def refusals() -> list[str]:
        return [str(line["reason"]) for line in reported if line["event"] == "no secure connection"]

    with structlog.testing.capture_logs() as reported, flow(cluster, unique, 1) as sent:
        async with anyio.create_task_group() as tasks:
            renewing = await tasks.start(renew, file)
            async with member(cluster, unique, {unique: 1}, brokers=brokers(token_file=str(file))) as (_, streams):
                taken = [each.offset for each in await take(streams[unique][0], 2400)]  # 400 a second
                assert not refusals()
                renewing.cancel()
                await until(refusals, LIMIT)
        sent.end()
    assert taken == list(range(2400))
    assert "OAUTHBEARER with token_file: " in refusals()[0]
    assert token()[:20] not in str(reported)


async def renew(file: Path, *, task_status: TaskStatus[anyio.CancelScope]) -> None:
    """Until the scope is cancelled."""
    new = file.with_suffix(".new")
    with anyio.CancelScope() as scope:
        for turn in count():
            new.write_text(token(3.0) + "\n")
            new.rename(file)
            if turn == 0:
                task_status.started(scope)
            await anyio.sleep(0.5)


async def test_a_command_prints_the_token(cluster: Cluster, unique: str, tmp_path: Path) -> None:
    """It is run for each connection."""
    await create_topic(cluster.connect, unique, 1)
    await anyio.to_thread.run_sync(produce, cluster.bootstrap, "3.9.1", unique, [(0, None, b"value")])
    program = tmp_path / "print-token"
    program.write_text(f'#!/bin/sh\necho run >>{tmp_path}/runs\necho "$1"\n')
    program.chmod(0o700)
    table = brokers(token_command=[str(program), token()])
    async with member(cluster, unique, {unique: 1}, brokers=table) as (_, streams):
        assert [each.value for each in await take(streams[unique][0], 1)] == [b"value"]
    runs = (tmp_path / "runs").read_text().count("run")
    await ask(cluster, table)
    assert (tmp_path / "runs").read_text().count("run") == runs + 1


async def test_each_error_says_what_to_check(cluster: Cluster, secured: Secured) -> None:
    command = [sys.executable, "-c", "import sys; sys.exit('no network\\ntoken=secret: the issuer refused')"]
    cases: list[tuple[dict[str, object], str]] = [
        (
            {"token_file": secured.file("expired-token", token(-100.0))},
            r'{"status":"invalid_token"} \(SASL_AUTHENTICATION_FAILED\): check whether the token has expired, .*',
        ),
        ({"token_file": secured.file("no-token", "a\nb")}, "token_file: has no token as RFC 6750 defines it"),
        ({"token_command": ["true"]}, "token_command: has no token as RFC 6750 defines it"),
        (
            {"token_command": command},
            r"token_command: \S+ ended with exit status 1: token=\(hidden\) the issuer refused",
        ),
    ]
    for sasl, said in cases:
        with pytest.raises(SecurityError) as caught:
            await ask(cluster, brokers(**sasl))
        where = rf"broker 1 \(\S+\): \[brokers.sasl\] OAUTHBEARER with {next(iter(sasl))}: "
        assert re.fullmatch(where + said, str(caught.value)), str(caught.value)


async def test_dead_letters_go_over_the_same_listener(cluster: Cluster, secured: Secured, unique: str) -> None:
    letters = f"{unique}-letters"
    for topic in (unique, letters):
        await create_topic(cluster.connect, topic, 1)
    await anyio.to_thread.run_sync(produce, cluster.bootstrap, "3.9.1", unique, [(0, b"k", b"poison")])
    table = brokers(token_file=secured.file("token", token()))
    rejected = {"policy": "dead-letter", "topic": letters}
    async with member(cluster, unique, {unique: 1}, brokers=table, rejected=rejected) as (_, streams):
        (message,) = await take(streams[unique][0], 1)
        await streams[unique][0].reject(message, "of no use")
    (letter,) = await anyio.to_thread.run_sync(read_letters, cluster.bootstrap, letters, 1)
    assert letter.value == b"poison"
