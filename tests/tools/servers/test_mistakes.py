"""Mistakes of a new user on real servers: one line on standard error, with the thing and the way out.

Those that need no server: `test_cli.py` and `test_configuration_faults.py` in `core/plain`. What ZooKeeper refuses:
`core/servers/test_zookeeper_security.py`.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import anyio
import pytest
from anyio.streams.buffered import BufferedByteReceiveStream

from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_sandbox.servers.topic_creation import create_topic
from tests.core.servers.test_zookeeper_security import written
from tests.support.command_line import CommandLine
from tests.support.extent import extent
from tests.support.file_rights import permissions_count
from tests.support.producing import produce
from tests.support.secured import Secured
from tests.support.zookeeper_sessions import session

CHANGES = ("offsets", "reset", "--all-topics", "--to-latest", "--execute")


async def stored(cluster: Cluster, name: str) -> None:
    """A topic with a record, and a group with an offset of it."""
    await create_topic(cluster.connect, name, 1)
    await anyio.to_thread.run_sync(produce, cluster.bootstrap, cluster.version, name, [(0, None, b"value")])
    async with session(cluster.connect) as zookeeper:
        await zookeeper.ensure(f"/consumers/{name}/offsets/{name}/0")
        await zookeeper.set(f"/consumers/{name}/offsets/{name}/0", b"0", -1)


async def kzconsumer(*words: str) -> tuple[int, str, str]:
    """Status and both outputs; `consume` ends its process by itself, and writes to the descriptor."""
    command = [sys.executable, "-m", "kzconsumer", *words]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("mistake", ["password", "name", "authority", "protocol", "down", None])
async def test_what_a_broker_refuses(
    secured: Secured,
    unique: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    mistake: str | None,
) -> None:
    """In commands that ask brokers; `lag` also shows what it has without them. None: the same file without a mistake.

    A daemon reports it in one event, and continues.
    """
    monkeypatch.chdir(tmp_path)  # where an undo file is written
    cluster = secured.cluster_of("3.9.1")
    await stored(cluster, unique)
    wrong = secured.file("wrong-password", "wrong")
    cases: dict[str | None, tuple[Mapping[str, object], str]] = {
        "password": (
            secured.table(cluster, "SASL_SSL", "PLAIN", sasl={"password_file": wrong}),
            r"no secure connection: broker 1 \(\S+\): \[brokers.sasl\] PLAIN as plain-user: Authentication failed: "
            r"Invalid username or password \(SASL_AUTHENTICATION_FAILED\)",
        ),
        "name": (
            secured.table(cluster, "SSL", tls={"ca": secured.ca_file}),
            r"no secure connection: broker 1 \(localhost:\d+\): its certificate is not for localhost, only for "
            r"127\.0\.0\.1: change advertised\.listeners of the broker, or set \[brokers\.tls\] verify_hostname = "
            r"false",
        ),
        "authority": (
            secured.table(cluster, "SSL", tls={"ca": secured.other_ca_file}),
            r"no secure connection: broker 1 \(\S+\): its certificate is signed by no authority of \[brokers.tls\] ca "
            r"\(unable to get local issuer certificate\)",
        ),
        "protocol": (
            {"security_protocol": "PLAINTEXT", "listener": "SASL_PLAINTEXT"},
            r"broker unusable: broker 1, path /brokers/ids/1: listener SASL_PLAINTEXT speaks SASL_PLAINTEXT, not "
            r"PLAINTEXT \(\[brokers\] security_protocol\)",
        ),
        "down": (
            {},
            r"(the end of 1 log is unknown: )?\S+: no broker answers: broker 1 \(127\.0\.0\.1:1\): connection refused",
        ),
        None: (secured.table(cluster, "SASL_SSL", "PLAIN"), ""),
    }
    table, line = cases[mistake]
    zookeeper = {"connect": cluster.connect}
    if mistake == "name":
        zookeeper = {"connect": await registered_at(cluster, "127.0.0.1:", "localhost:")}
    if mistake == "down":
        zookeeper = {"connect": await registered_at(cluster, cluster.bootstrap, "127.0.0.1:1")}
    tables = {"brokers": table, "subscription": {"topics": {unique: 1}}, "sink": {"plugin": "jsonlines"}}
    options = ("--config", written(tmp_path, zookeeper, unique, **tables))
    here = CommandLine(capsys)
    for run, words, result in (
        (here, ("lag",), (4, True)),
        (here, CHANGES, (1, False)),
        (kzconsumer, ("consume", "-e"), (1, False)),
    ):
        if run is kzconsumer and mistake in extent(("name", "authority", "protocol", "down", None), ()):
            continue
        status, out, err = await run(*words, *options)
        assert (status, bool(out)) == ((0, True) if mistake is None else result), (words, err)
        if (words, mistake) == (("lag",), "down"):  # the report itself says why
            assert (bool(re.search(line, " ".join(out.split()))), err) == (True, ""), out
        else:
            assert re.fullmatch(f"kzconsumer: {line}\n" if line else "", err), (words, out, err)
    if mistake == "name":
        event, _, reason = line.partition(": ")
        assert re.fullmatch(reason, await first_of_daemon(event, *options))


async def first_of_daemon(event: str, *options: str) -> str:
    """The reason in the first such event of `kzconsumer run`, which is then stopped and ends with status 0."""
    command = [sys.executable, "-m", "kzconsumer", "run", *options]
    async with await anyio.open_process(command, stdout=subprocess.DEVNULL) as daemon:
        assert daemon.stderr is not None
        lines = BufferedByteReceiveStream(daemon.stderr)
        with anyio.fail_after(60):
            while (logged := json.loads(await lines.receive_until(b"\n", 10_000)))["event"] != event:
                pass
            daemon.terminate()
            async for _ in lines:
                pass
            assert await daemon.wait() == 0
        return str(logged["reason"])


async def registered_at(cluster: Cluster, present: str, address: str) -> str:
    """A chroot with a copy of what the commands read of the cluster, whose broker is registered at another address."""
    chroot = f"/{address.replace(':', '-')}"
    async with session(cluster.connect) as zookeeper:
        copies = ["/consumers", "/brokers"]
        for path in copies:
            copies += [f"{path}/{name}" for name in await zookeeper.children(path)]
        await zookeeper.ensure(chroot)
        for path in copies:
            data = (await zookeeper.get(path)).data
            await zookeeper.ensure(f"{chroot}{path}")
            if path.startswith("/brokers/ids/"):
                data = data.replace(f"//{present}".encode(), f"//{address}".encode())
            await zookeeper.set(f"{chroot}{path}", data, -1)
    return f"{cluster.connect}{chroot}"


async def test_a_broker_is_not_a_zookeeper(cluster: Cluster, unique: str, tmp_path: Path) -> None:
    """Nor is a port without a server. Only what may wait longer reports the first failure at once."""

    async def refused(command: str, address: str, said: str) -> None:
        folder = tmp_path / f"{command}-{address}"
        folder.mkdir()
        file = written(folder, {"connect": address}, unique, subscription={"topics": {unique: 1}})
        status, out, err = await kzconsumer(*command.split(), "--config", file)
        at_once = f"kzconsumer: no ZooKeeper server answers: hosts {address}, reasons {address}: {said}\n"
        meanwhile = at_once if command == "consume -e" else ""
        assert (status, out, err) == (
            1,
            "",
            f"{meanwhile}kzconsumer: {address}: ZooKeeper did not answer within 15 s ({address}: {said}); check that "
            "host and port are ZooKeeper's (usually 2181), not a broker's\n",
        )

    broker, nobody = (cluster.bootstrap, "no answer within 2.0 s"), ("127.0.0.1:1", "connection refused")
    usual = (("lag", *broker), ("consume -e", *nobody))
    async with anyio.create_task_group() as tasks:
        for case in extent(usual, (*usual, ("lag", *nobody), ("consume -e", *broker))):
            tasks.start_soon(refused, *case)


async def test_misspelt_names(cluster: Cluster, unique: str, capsys: pytest.CaptureFixture[str]) -> None:
    await stored(cluster, unique)
    run = CommandLine(capsys, "--zookeeper", cluster.connect)
    wrong = unique.replace("misspelt", "mispelt")
    group = f"{cluster.connect}: there is no group {wrong}; did you mean {unique}?"
    topic = f"there is no topic {wrong}; did you mean {unique}?"
    for words, line in (
        (("lag", wrong), group),
        (("groups", "describe", wrong), group),
        (("offsets", "reset", wrong, *CHANGES[2:]), group),
        (("lag", unique, "--topic", wrong), topic),
        (("topics", "describe", wrong), topic),
        (("offsets", "reset", unique, "--topic", wrong, "--to-latest"), topic),
    ):
        assert await run(*words) == (1, "", f"kzconsumer: {line}\n")
    modes = ("-e",), ("--group", unique, "-c", "1")  # a member would wait for the topic
    for mode in extent(modes[1:], modes):
        consumed = await kzconsumer("consume", wrong, *mode, "--zookeeper", cluster.connect)
        assert consumed == (1, "", f"kzconsumer: {topic}\n")


async def test_a_read_only_directory(
    cluster: Cluster, unique: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    await stored(cluster, unique)
    monkeypatch.chdir(tmp_path)
    tmp_path.chmod(0o555)
    with permissions_count():
        done = await CommandLine(capsys, "--zookeeper", cluster.connect)("offsets", "reset", unique, *CHANGES[2:])
    assert (done.status, done.out) == (1, "")
    assert re.fullmatch(
        r"kzconsumer: undo-\S+\.jsonl: cannot be written \(Permission denied\); nothing was changed: name another "
        r"file\n",
        done.err,
    )
