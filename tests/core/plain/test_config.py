"""The settings file: the names it promises, its defaults, and every kind of fault."""

from __future__ import annotations

import re
import tomllib
from datetime import date
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import inspect

from kzconsumer.errors import ConfigError
from kzconsumer.settings.sections import BatchSettings
from kzconsumer.settings.settings import Settings

CONFIG = Path(__file__).parents[3] / "config"

# Every name in here is a promise to users.
CONTRACT = """
[zookeeper]
connect = "127.0.0.1:2181,127.0.0.1:2182/chroot"
session_timeout = "6s"
[group]
id = "orders"
assignor = "range"
[subscription]
topics = { orders = 2, payments = 1 }
[offsets]
reset = "smallest"
commit_interval = "10s"
[sink]
plugin = "spark"
[sink.options]
destination = "parquet"
path = "out/"
master = "local[2]"
conf = { "spark.driver.memory" = "1g" }
"""


def tables(**changes: dict[str, Any]) -> dict[str, Any]:
    """The minimal tables, with the keys of some tables changed."""
    least: dict[str, Any] = {"zookeeper": {"connect": "zk1"}, "group": {"id": "orders"}}
    return least | {name: least.get(name, {}) | keys for name, keys in changes.items()}


def faults(content: dict[str, Any]) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        Settings.from_dict(content, source="group.toml")
    return list(caught.value.faults)


def test_promised_names_are_accepted(tmp_path: Path) -> None:
    path = tmp_path / "group.toml"
    path.write_text(CONTRACT)
    settings = Settings.load(path)
    assert settings.zookeeper.connect == "127.0.0.1:2181,127.0.0.1:2182/chroot"
    assert settings.zookeeper.session_timeout == 6.0
    assert (settings.group.id, settings.group.assignor) == ("orders", "range")
    assert settings.subscription.topics == {"orders": 2, "payments": 1}
    assert (settings.offsets.reset, settings.offsets.commit_interval) == ("smallest", 10.0)
    sink = settings.require_daemon()
    assert sink.plugin == "spark"
    assert sink.options["conf"] == {"spark.driver.memory": "1g"}


def test_a_library_needs_neither_topics_nor_sink() -> None:
    settings = Settings.from_dict(tables())
    assert settings.sink is None
    assert settings.subscription.topics == {}


def test_the_daemon_needs_topics_and_a_sink() -> None:
    with pytest.raises(ConfigError) as caught:
        Settings.from_dict(tables(), source="group.toml").require_daemon()
    assert caught.value.faults == (
        "group.toml: [subscription] topics: missing (or include, or exclude)",
        "group.toml: [sink] plugin: missing",
    )


@pytest.mark.parametrize("connect", ["zk1", "zk1:2181", "10.0.0.1:1, [::1]:2181,zk_3", "zk1/a/b", "zk1:2181/"])
def test_connect_strings(connect: str) -> None:
    assert Settings.from_dict(tables(zookeeper={"connect": connect})).zookeeper.connect == connect


@pytest.mark.parametrize(
    "connect", ["", "/chroot", "zk1:", "zk1:0", "zk1:65536", "zk1,,zk2", "a b", "zk1:x", "zk1/a ", 2181]
)
def test_bad_connect_strings(connect: object) -> None:
    (line,) = faults(tables(zookeeper={"connect": connect}))
    assert line.startswith("group.toml: [zookeeper] connect: ")
    assert 'is not a list of hosts such as "zk1:2181,zk2:2181"' in line


@pytest.mark.parametrize("connect", ["zk1/a/", "zk1//a", "zk1/a/../b"])
def test_bad_chroots(connect: str) -> None:
    (line,) = faults(tables(zookeeper={"connect": connect}))
    assert line.endswith("which is not a ZooKeeper path")


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"group": {"id": ""}}, "[group] id: \"\" is not a name made of ASCII letters, digits, '.', '_' and '-'"),
        ({"group": {"id": 2026}}, "[group] id: 2026 is not text: it needs quotes"),
        ({"group": {"id": date(2026, 1, 31)}}, "[group] id: 2026-01-31 is not text: it needs quotes"),
        ({"rejected": {"topic": 2026}}, "[rejected] topic: 2026 is not text: it needs quotes"),
        ({"group": {"id": "a/b"}}, "[group] id: \"a/b\" is not a name made of ASCII letters, digits, '.', '_' and '-'"),
        ({"group": {"id": "é"}}, "[group] id: \"é\" is not a name made of ASCII letters, digits, '.', '_' and '-'"),
        ({"group": {"asignor": "range"}}, "[group] asignor: unknown key; did you mean assignor?"),
        ({"group": {"assignor": ""}}, '[group] assignor: "" is empty'),
        ({"subscription": {"topics": {}}}, "[subscription] topics: is empty"),
        ({"subscription": {"topics": {"t": 0}}}, "[subscription] topics.t: 0 is less than 1"),
        (
            {"subscription": {"topics": ["t", 1]}},
            '[subscription] topics: ["t", 1] is not a table "topic = number of streams" such as { payments = 1 }, '
            'or a list such as ["payments"]',
        ),
        (
            {"subscription": {"paused": ["a:0", "b"]}},
            '[subscription] paused[1]: "b" is not a topic and a partition such as "orders:3"',
        ),
        (
            {"subscription": {"topics": {"..": 1}}},
            "[subscription] topics: \"..\" is not a topic name (ASCII letters, digits, '.', '_' and '-')",
        ),
        (
            {"offsets": {"reset": "smalest"}},
            '[offsets] reset: "smalest" is not one of fail, largest, smallest; did you mean "smallest"?',
        ),
        (
            {"offsets": {"reset": "earliest"}},  # resembles "largest" most
            '[offsets] reset: "earliest" is a word of the newer consumer: "smallest" here',
        ),
        (
            {"offsets": {"commit_interval": 10}},
            '[offsets] commit_interval: 10 is not a duration such as "10s", "500ms"',
        ),
        ({"fetch": {"max_bytes": "2GiB"}}, '[fetch] max_bytes: "2GiB" is not between 1 and 2147483647 bytes'),
        ({"batch": {"max_bytes": 0}}, "[batch] max_bytes: 0 is less than 1"),
        (
            {"batch": {"min_records": 9, "max_records": 5}},
            "[batch]: min_records, of one partition, is more than max_records, of the whole batch",
        ),
        ({"subscription": {"run": "monday"}}, '[subscription]: run needs stop_at, such as "end"'),
        ({"sink": {}}, "[sink] plugin: missing"),
        ({"sink": {"plugin": "x", "options": 1}}, "[sink] options: 1 is not a table"),
        (
            {"log": {"level": "INFO"}},
            '[log] level: "INFO" is not one of debug, error, info, warning; did you mean "info"?',
        ),
        ({"offset": {}}, "offset: unknown key; did you mean offsets?"),
        ({"subscription": {"include": " "}}, '[subscription] include: " " is not a regular expression'),
        ({"subscription": {"include": 1}}, "[subscription] include: 1 is not a regular expression"),
        ({"subscription": {"whitelist": "a.*"}}, "[subscription] whitelist: unknown key; did you mean include?"),
        ({"subscription": {"blacklist": "a.*"}}, "[subscription] blacklist: unknown key; did you mean exclude?"),
    ],
)
def test_a_fault_is_one_line(changes: dict[str, Any], line: str) -> None:
    assert faults(tables(**changes)) == [f"group.toml: {line}"]


def test_the_name_of_a_run_from_the_command_line() -> None:
    endless = Settings.from_dict(tables(), source="group.toml")
    bounded = Settings.from_dict(tables(subscription={"stop_at": "end"}), source="group.toml")
    assert bounded.in_run("2026-01-31").subscription.run == "2026-01-31"
    for settings, name in ((endless, "monday"), (bounded, "a b")):
        with pytest.raises(ConfigError, match=rf"^group\.toml: --run {name}: "):
            settings.in_run(name)


def test_all_faults_of_a_file_are_reported_at_once() -> None:
    assert faults({"group": {"asignor": "x"}, "offsets": {"reset": 1}}) == [
        "group.toml: [group] asignor: unknown key; did you mean assignor?",
        "group.toml: [group] id: missing",
        "group.toml: [offsets] reset: 1 is not one of fail, largest, smallest",
        "group.toml: [zookeeper] connect: missing",
    ]


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"[group\n", r":1:7: is not TOML: Expected .*"),
        (b'[group]\nid = "a"\nid = "b"\n', r":3:9: is not TOML: .*; this is given twice"),
        (b"[group]\n[group]\n", r":2:7: is not TOML: .*; this is given twice"),
        (b"[group]\nid = orders\n", r':2:6: is not TOML: Invalid value; text needs quotes: id = "\.\.\."'),
        (b"connect = 127.0.0.1:2181\n", r':1:16: is not TOML: .*; text needs quotes: connect = "\.\.\."'),
        (b"[group]\nid =\n", r":2:5: is not TOML: Invalid value; id has no value"),
        (b"[group]\nid: orders\n", r":2:3: is not TOML: .*; write key = value"),
        (b'[sink]\nplugin = "spark\n', r":2:16: is not TOML: Illegal character.*"),
        (b"topics = { a = 1", r":1:17: is not TOML: Unclosed inline table"),
        (
            b"# consumer.properties\nzookeeper.connect=localhost:2181\ngroup.id=orders\n",
            ": is a configuration of the original consumer, not TOML; translate it with"
            " `kzconsumer config import .*group.toml >group.toml`",
        ),
        (b"# \xff\n", r": is not UTF-8 text \(byte 2\)"),
        (None, ": cannot be read: No such file or directory"),
    ],
)
def test_a_file_that_cannot_be_read(tmp_path: Path, content: bytes | None, line: str) -> None:
    path = tmp_path / "group.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        Settings.load(path)
    (output,) = caught.value.faults
    assert re.fullmatch(re.escape(str(path)) + line, output), output


def test_all_statements_that_are_not_toml_are_reported(tmp_path: Path) -> None:
    path = tmp_path / "group.toml"
    path.write_text('[group]\nid = orders\n[zookeeper]\nconnect = "zk"\nsession_timeout = 6s\n[sink]\nplugin: spark\n')
    with pytest.raises(ConfigError) as caught:
        Settings.load(path)
    places = [line.removeprefix(f"{path}:").partition(" ")[0] for line in caught.value.faults]
    assert places == ["2:6:", "5:20:", "7:7:"]


def test_a_key_with_dots_is_no_property(tmp_path: Path) -> None:
    path = tmp_path / "group.toml"
    path.write_text('zookeeper.connect = "zk"\ngroup.id = "orders"\n')
    assert Settings.load(path).group.id == "orders"


def test_a_list_of_topics_is_a_stream_for_each() -> None:
    assert Settings.from_dict(tables(subscription={"topics": ["a", "b"]})).subscription.topics == {"a": 1, "b": 1}


@pytest.mark.parametrize(
    ("connect", "named"),
    [
        ("zk1:2181,zk2:21x1/kafka", ': "zk2:21x1" is not a host and a port'),
        ("zk1:2181,zk2;zk3", ': "zk2;zk3" is not a host and a port'),
        ("zk1,me:secret@zk2", '/chroot"'),
    ],
)
def test_the_wrong_part_of_a_connect_string_is_named(connect: str, named: str) -> None:
    (line,) = faults(tables(zookeeper={"connect": connect}))
    assert line.endswith(named)


def test_a_directory_is_not_a_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        Settings.load(tmp_path)


def keys_of(kind: type[msgspec.Struct], *above: str) -> set[str]:
    """The dotted keys a struct has, with nested tables expanded."""
    described = inspect.type_info(kind)
    assert isinstance(described, inspect.StructType)
    found: set[str] = set()
    for field in described.fields:
        inner = [t for t in getattr(field.type, "types", [field.type]) if isinstance(t, inspect.StructType)]
        path = (*above, field.encode_name)
        found |= keys_of(inner[0].cls, *path) if inner else {".".join(path)}
    return found - {"source"}


def names_in(tables: dict[str, Any], *above: str) -> set[str]:
    """The dotted keys of a file; a table that is a key's value counts as one key."""
    known = keys_of(Settings)
    found: set[str] = set()
    for name, value in tables.items():
        path = ".".join((*above, name))
        found |= names_in(value, *above, name) if isinstance(value, dict) and path not in known else {path}
    return found


def reference(*, optional: bool) -> dict[str, Any]:
    """The reference file, with the keys that have no default if `optional`."""
    text = (CONFIG / "group.reference.toml").read_text()
    return tomllib.loads(re.sub(r"(?m)^#(?=[a-z_]+ = )", "", text) if optional else text)


def test_the_reference_has_every_key_and_no_other() -> None:
    whole = reference(optional=True)
    assert names_in(whole) == keys_of(Settings)
    Settings.from_dict(whole | {"fetch": whole["fetch"] | {"on_corrupt": "quarantine"}})


def test_the_reference_shows_the_defaults() -> None:
    shown = Settings.from_dict(reference(optional=False))
    required = {"zookeeper": {"connect": shown.zookeeper.connect}, "group": {"id": shown.group.id}}
    examples = {"subscription": {"topics": dict(shown.subscription.topics)}, "sink": {"plugin": "jsonlines"}}
    assert shown == Settings.from_dict(required | examples)


def test_the_smallest_file_is_enough_for_the_daemon() -> None:
    assert Settings.load(CONFIG / "group.toml").require_daemon().plugin == "jsonlines"


@pytest.mark.parametrize(("table", "key"), [("sink", "on_batch_failure"), ("fetch", "on_corrupt")])
def test_a_quarantine_needs_a_directory(table: str, key: str) -> None:
    plugin = {"plugin": "jsonlines"} if table == "sink" else {}
    wanted = tables(**{table: {key: "quarantine", **plugin}})
    assert faults(wanted) == [f'group.toml: [{table}]: {key} = "quarantine" needs the key quarantine, a directory']
    Settings.from_dict(tables(**{table: {key: "quarantine", "quarantine": "aside", **plugin}}))


def test_a_directory_without_its_policy_would_stay_empty() -> None:
    assert faults(tables(fetch={"quarantine": "aside"})) == [
        'group.toml: [fetch]: quarantine goes with on_corrupt = "quarantine": nothing would be written there'
    ]
    for key in ("topic", "directory"):
        why = 'goes with "dead-letter", as policy or of a class: nothing would be written there'
        of_no_class = {key: "aside", "classes": {"odd": "skip"}}
        assert faults(tables(rejected=of_no_class)) == [f"group.toml: [rejected]: {key} {why}"]
        Settings.from_dict(tables(rejected={key: "aside", "classes": {"odd": "dead-letter"}}))
    Settings.from_dict(tables(sink={"plugin": "jsonlines", "quarantine": "aside"}))  # sink verify looks there


def test_the_least_batch_is_not_more_than_the_largest() -> None:
    assert faults(tables(batch={"min_bytes": "2MiB", "max_bytes": "1MiB"})) == [
        "group.toml: [batch]: min_bytes, of one partition, is more than max_bytes, of the whole batch"
    ]
    Settings.from_dict(tables(batch={"min_bytes": "1MiB", "max_bytes": "1MiB"}))


def test_a_batch_that_the_member_does_not_hold_may_be_larger() -> None:
    assert BatchSettings().most("columns") == (500_000, 64 << 20)
    assert BatchSettings().most("ranges") == (2_000_000, 512 << 20)
    given = BatchSettings(max_records=7, max_bytes=8)
    assert given.most("columns") == given.most("ranges") == (7, 8)
    assert BatchSettings(min_records=600_000, min_bytes=1 << 30).most("columns") == (600_000, 1 << 30)


@pytest.mark.parametrize("given", [None, [], "orders.toml"])
def test_what_is_no_table_is_named_in_one_sentence(given: Any) -> None:
    with pytest.raises(ConfigError) as raised:
        Settings.from_dict(given)
    (fault,) = raised.value.faults
    assert fault.startswith("settings: ")
    assert fault.endswith(" is not a table")
    assert "::" not in fault
