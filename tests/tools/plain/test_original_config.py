"""Configurations of the original consumer: how each key is converted, and that our loader reads the result."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kzconsumer.cli.main import EXIT_CONFIG, main
from kzconsumer.errors import ConfigError
from kzconsumer.settings.settings import Settings
from kzconsumer_tools.commands.config_commands import as_toml
from kzconsumer_tools.original_config import KEYS, REQUIRED, read

LEAST = "zookeeper.connect=zk1:2181\ngroup.id=orders\n"
TIMES = st.integers(1, 3_600_000).map(str)
SIZES = st.integers(1, 2**31 - 1).map(str)
TRUTH = st.sampled_from(["true", "false"])
LEGAL = {
    "zookeeper.connect": st.sampled_from(["zk1:2181", "zk1,zk2:2181/kafka"]),
    "group.id": st.sampled_from(["orders", "a-b_c.1"]),
    "consumer.id": st.just("one"),
    "auto.commit.enable": TRUTH,
    "auto.offset.reset": st.sampled_from(["smallest", "largest"]),
    "offsets.storage": st.sampled_from(["zookeeper", "kafka", "KAFKA"]),
    "dual.commit.enabled": TRUTH,
    "exclude.internal.topics": TRUTH,
    "partition.assignment.strategy": st.sampled_from(["range", "roundrobin"]),
    "consumer.timeout.ms": st.just("-1") | TIMES,
}
FILES = st.fixed_dictionaries(
    {key: LEGAL[key] for key in REQUIRED},
    optional={
        key: LEGAL.get(key, TIMES if key.endswith(".ms") else SIZES if "bytes" in key else st.integers(1, 99).map(str))
        for key in KEYS
        if key not in REQUIRED
    },
)


@given(FILES)
def test_our_loader_reads_the_result(values: dict[str, str]) -> None:
    imported = read("".join(f"{key}={value}\n" for key, value in values.items()).encode(), "consumer.properties")
    written = tomllib.loads("\n".join(as_toml(imported, "consumer.properties")))
    assert Settings.from_dict(written) == Settings.from_dict(imported.settings)
    assert {note.key for note in imported.notes if note.given} == values.keys()


def test_each_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The file as Java reads it, the resulting settings, and the messages."""
    file = tmp_path / "consumer.properties"
    file.write_text(
        "# of the billing team\nzookeeper.connect = zk1:2181,\\\n    zk2:2181/kafka\ngroup.id: billing\n"
        "zookeeper.session.timeout.ms=10000\nfetch.message.max.bytes=2097152\nfetch.wait.max.ms=0\n"
        "auto.commit.enable=false\noffsets.storage=Kafka\ndual.commit.enabled=false\n"
        "partition.assignment.strategy=roundrobin\nsocket.timeout.ms=45000\nrebalance.max.retries=10\n"
        "security.protocol=S\\u0007L\nssl.key.password=hush\n"
    )
    assert main(["config", "import", str(file)]) == 0
    done = capsys.readouterr()
    assert tomllib.loads(done.out) == {
        "zookeeper": {"connect": "zk1:2181,zk2:2181/kafka", "session_timeout": "10s"},
        "group": {"id": "billing", "assignor": "roundrobin"},
        "fetch": {"request_timeout": "45s", "max_bytes": "2MiB", "queue_bytes": "4MiB", "max_wait": "0s"},
        "offsets": {"commit_interval": "1m", "storage": "kafka", "dual_commit": False, "reset": "largest"},
    }
    assert "hush" not in done.out + done.err
    assert main(["config", "import", str(file), "-o", "json"]) == 0
    kinds: dict[str, set[str]] = {}
    for note in json.loads(capsys.readouterr().out)["notes"]:
        kinds.setdefault(note["kind"], set()).add(note["key"])
        assert (note["kind"] == "same") is (f": {note['key']}=" not in done.err.replace("\n", " "))
    assert kinds == {
        "same": {
            "zookeeper.connect",
            "group.id",
            "zookeeper.session.timeout.ms",
            "fetch.wait.max.ms",
            "auto.commit.interval.ms",
            "offsets.storage",
        },
        "changed": {"fetch.message.max.bytes", "queued.max.message.chunks", "socket.timeout.ms"},
        "unsafe": {
            "auto.commit.enable",
            "auto.offset.reset",
            "dual.commit.enabled",
            "partition.assignment.strategy",
        },
        "left_out": {"rebalance.max.retries"},
        "unknown": {"security.protocol", "ssl.key.password"},
    }


@pytest.mark.parametrize(
    ("more", "fault"),
    [
        ("auto.offset.reset=earliest", "auto.offset.reset: 'earliest' is not a value of the original's"),
        ("fetch.min.bytes=1k", "fetch.min.bytes: '1k' is not a whole number"),
        ("auto.commit.enable=yes", "auto.commit.enable: 'yes' is neither true nor false"),
        ("group.id=a b", r"\[group\] id"),
        ("fetch.message.max.bytes=-1", r"\[fetch\] max_bytes"),
    ],
)
def test_unsupported_configurations_are_refused(more: str, fault: str) -> None:
    with pytest.raises(ConfigError, match=f"consumer.properties: {fault}"):
        read(f"{LEAST}{more}\n".encode(), "consumer.properties")


def test_every_fault_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "consumer.properties"
    file.write_text("offsets.storage=disk\nsocket.timeout.ms=soon\n")
    assert main(["config", "import", str(file)]) == EXIT_CONFIG
    assert len(capsys.readouterr().err.splitlines()) == 4


@pytest.mark.parametrize(
    ("line", "kind", "written", "said"),
    [
        ("consumer.timeout.ms=-1", "left_out", None, "streams wait without limit, as they do here"),
        ("consumer.timeout.ms=0", "left_out", None, "an application that needs a limit sets it where it waits"),
        ("exclude.internal.topics=true", "left_out", None, "always so for a topic filter"),
        ("exclude.internal.topics=false", "unsafe", None, "name them in [subscription] topics"),
        ("socket.timeout.ms=0", "left_out", None, "there is no unlimited timeout"),
        ("socket.timeout.ms=1", "changed", "1ms", "also for connecting to a broker"),
        ("auto.commit.enable=true", "left_out", None, "always on"),
        ("auto.commit.enable=false", "unsafe", None, "cannot be turned off"),
        ("offsets.storage=kafka\ndual.commit.enabled=true", "same", True, ""),
        ("offsets.storage=Kafka\ndual.commit.enabled=false", "unsafe", False, "only safe if all members"),
        ("offsets.storage=ZooKeeper\ndual.commit.enabled=true", "left_out", None, "offsets.storage=kafka only"),
        ("dual.commit.enabled=false", "left_out", None, "offsets.storage=kafka only"),
        ("partition.assignment.strategy=range", "same", "range", ""),
        ("partition.assignment.strategy=roundrobin", "unsafe", "roundrobin", "roundrobin-legacy"),
        ("auto.offset.reset=smallest", "same", "smallest", ""),
        ("auto.offset.reset=largest", "unsafe", "largest", "earlier records are skipped"),
        ("fetch.min.bytes=0", "same", 1, ""),
    ],
)
def test_what_each_value_becomes_and_what_is_said_of_it(line: str, kind: str, written: object, said: str) -> None:
    imported = read(f"{LEAST}{line}\n".encode(), "consumer.properties")
    key, _, value = line.rpartition("\n")[2].partition("=")
    (note,) = (each for each in imported.notes if each.key == key)
    assert (note.kind, note.value, note.given) == (kind, value, True)
    assert said in note.explanation
    assert bool(note.explanation) is bool(said)
    table, _, name = (note.setting or ".").partition(".")
    assert imported.settings.get(table, {}).get(name) == written


def test_a_file_that_java_does_not_read_is_a_fault() -> None:
    with pytest.raises(ConfigError, match=r"^consumer.properties: "):
        read(LEAST.encode() + b"x=\\u12\n", "consumer.properties")
