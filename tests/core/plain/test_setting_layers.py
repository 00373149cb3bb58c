"""The layers of the settings: which one wins, what is merged, and that a fault names its origin."""

from __future__ import annotations

import os
import time
import tomllib
from pathlib import Path

import pytest

from kzconsumer.errors import ConfigError
from kzconsumer.settings import layers
from kzconsumer.settings.layers import Layers, Origin, read_layers
from kzconsumer.settings.settings import Settings, SettingsFile, as_toml, effective, layers_of
from kzconsumer.settings.table_reader import tables_of

LEAST = """\
[zookeeper]
connect = "zk1"

[group]
id = "orders"

[subscription]
topics = { orders = 2, payments = 1 }
[sink]
plugin = "spark"
options = { path = "out", conf = { a = "1" } }
"""


class Written:
    """The files of one member; `read` merges all layers."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "group.toml"
        self.vendor = folder / "vendor"
        self.vendor.mkdir()
        self.drop_ins = folder / "group.toml.d"
        self.drop_ins.mkdir()
        self.file.write_text(LEAST)

    def read(self, *flags: str, **environment: str) -> Layers:
        tables = frozenset(tables_of(SettingsFile))
        return read_layers(self.file, tables, vendor=self.vendor, environment=environment, flags=flags)

    def faults(self, *flags: str, **environment: str) -> list[str]:
        """Paths are relative to the directory."""
        with pytest.raises(ConfigError) as caught:
            Settings.of(self.read(*flags, **environment))
        return [fault.replace(f"{self.file.parent}{os.sep}", "") for fault in caught.value.faults]


@pytest.fixture
def written(tmp_path: Path) -> Written:
    return Written(tmp_path)


def test_each_layer_wins_over_those_below_it(written: Written) -> None:
    """Six keys; each layer sets all the keys of those above it, and one more."""
    keys = ["reconcile_interval", "unowned_alarm", "ownership", "assignor", "unreadable_members"]
    values = {key: f"{key}-of-%s" for key in keys}

    def table(layer: str, number: int) -> str:
        return "[group]\n" + "".join(f'{key} = "{values[key] % layer}"\n' for key in keys[:number])

    (written.vendor / "a.toml").write_text(table("vendor", 5))
    written.file.write_text(LEAST.replace("[group]\n", table("file", 4)))
    (written.drop_ins / "10-first.toml").write_text(table("first", 3))
    (written.drop_ins / "20-second.toml").write_text(table("drop-in", 3))
    (written.drop_ins / "30-none.txt").write_text(table("none", 3))
    environment = {f"KZCONSUMER__GROUP__{key.upper()}": values[key] % "environment" for key in keys[:2]}
    layers = written.read(f"group.{keys[0]}={values[keys[0]] % 'flag'}", **environment)
    found = layers.tables["group"]
    assert isinstance(found, dict)
    assert [found[key].partition("-of-")[2] for key in keys] == ["flag", "environment", "drop-in", "file", "vendor"]
    assert [layers.origins["group", key].layer for key in keys] == ["flag", "environment", "drop-in", "file", "vendor"]
    assert layers.origins["group", "ownership"] == Origin("drop-in", str(written.drop_ins / "20-second.toml"), 4)
    assert str(layers.origins["group", keys[1]]) == "KZCONSUMER__GROUP__UNOWNED_ALARM"
    assert str(layers.origins["group", keys[0]]) == "--set group.reconcile_interval"


def test_what_is_in_effect_and_where_it_comes_from(written: Written) -> None:
    """The whole page: each key in the order of the reference file, with its origin, and secrets hidden."""
    (written.vendor / "a.toml").write_text('[log]\nlevel = "debug"\nformat = "json"\n')
    (written.drop_ins / "b.toml").write_text(
        '[sink.options]\n"jdbc.password" = "s3cret"\nurl = "jdbc:postgresql://u:s3cret@h/d"\n'
        '[fetch]\nmax_wait = "250ms"\n'
    )
    flags = "log.level=warning", "subscription.paused=['orders:1']"
    layers = written.read(*flags, KZCONSUMER__STATUS__LISTEN="unix:/s")
    page = "\n".join(as_toml(effective(Settings.of(layers), layers))).replace(f"{written.file.parent}{os.sep}", "")
    assert page == Path(__file__).with_name("effective_settings.txt").read_text().rstrip("\n")


def test_tables_of_settings_are_merged_and_values_replaced(written: Written) -> None:
    """The options of a sink are merged; the topics are one value, whichever way they are written."""
    (written.drop_ins / "a.toml").write_text(
        '[subscription.topics]\nclicks = 3\n[sink.options]\nmaster = "local[2]"\nconf = { b = "2" }\n'
    )
    layers = written.read()
    settings = Settings.of(layers)
    assert settings.subscription.topics == {"clicks": 3}
    assert settings.require_daemon().options == {"path": "out", "master": "local[2]", "conf": {"b": "2"}}
    drop_in = str(written.drop_ins / "a.toml")
    assert layers.origins["subscription", "topics"] == Origin("drop-in", drop_in, 1)
    assert layers.origins["sink", "options", "path"] == Origin("file", str(written.file), 11)
    assert layers.origins["sink", "options", "conf"] == Origin("drop-in", drop_in, 5)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("10", 10),
        ("10s", "10s"),
        ("true", True),
        ("zk1:2181,zk2:2181/a", "zk1:2181,zk2:2181/a"),
        ('"10"', "10"),
        ('{ a = 1, "b.c" = 2 }', {"a": 1, "b.c": 2}),
        ("", ""),
        ("1\nkey = 2", "1\nkey = 2"),
        ("[1, 2]", [1, 2]),
    ],
)
def test_variables_and_flags_hold_toml_or_else_text(written: Written, text: str, value: object) -> None:
    layers = written.read(f"log.level={text}", KZCONSUMER__LOG__FORMAT=text)
    assert layers.tables["log"] == {"level": value, "format": value}


def test_lines_are_those_of_the_statements(written: Written) -> None:
    """Values over several lines that look like statements themselves, keys with dots, tables within a table."""
    written.file.write_text(
        '# [group]\nlog.level = "info"\n\nfetch = { max_wait = "1s", min_bytes = 5 }\n[group]\nassignor = """\n'
        'id = 1\n[x]\n"""  # so\nid = "a"\n[brokers]\n\n[brokers.tls]\n"ca" = "b"\n[subscription]\ntopics = { a = 1 }\n'
        "[zookeeper]\nconnect = [\n  1,\n]\nsession_timeout = 3\n"
    )
    origins = written.read().origins
    assert {".".join(place): origin.line for place, origin in origins.items()} == {
        "log.level": 2,
        "fetch.max_wait": 4,
        "fetch.min_bytes": 4,
        "group.assignor": 6,
        "group.id": 10,
        "brokers.tls.ca": 14,
        "subscription.topics": 16,
        "zookeeper.connect": 18,
        "zookeeper.session_timeout": 21,
    }


def test_a_fault_names_where_it_was_written(written: Written) -> None:
    (written.vendor / "a.toml").write_text('[log]\nlevel = "loud"\n')
    (written.drop_ins / "a.toml").write_text('\n[fetch]\non_corrupt = "quarantine"\n')
    (written.drop_ins / "b.toml").write_text('[subscription]\ntopics = { "a/b" = 1 }\n[offset]\nreset = 1\n')
    written.file.write_text(LEAST.replace('id = "orders"', "") + "[batch]\nmax_recrds = 1\n")
    assert written.faults(
        "fetch.max_bytes=0", "batch=3", KZCONSUMER__GRUOP__ID="a", KZCONSUMER__SINK__OPTIONS="text"
    ) == [
        'vendor/a.toml:2: [log] level: "loud" is not one of debug, error, info, warning',
        "group.toml: [group] id: missing",
        "group.toml.d/b.toml:2: [subscription] topics: \"a/b\" is not a topic name (ASCII letters, digits, '.', '_' "
        "and '-')",
        'KZCONSUMER__SINK__OPTIONS: [sink] options: "text" is not a table',
        "--set batch: [batch]: 3 is not a table",
        "--set fetch.max_bytes: [fetch] max_bytes: 0 is not between 1 and 2147483647 bytes",
        "group.toml.d/b.toml:3: offset: unknown key; did you mean offsets?",
        "KZCONSUMER__GRUOP__ID: gruop: unknown key; did you mean group?",
    ]
    written.file.write_text(LEAST)
    assert written.faults("log.level=info", "subscription.topics.a=1", "group.id=a") == [
        'group.toml.d/a.toml: [fetch]: on_corrupt = "quarantine" needs the key quarantine, a directory',
        "group.toml.d/b.toml:3: offset: unknown key; did you mean offsets?",
    ]


@pytest.mark.parametrize(
    ("flag", "environment", "line"),
    [
        ("group.id", {}, "--set group.id: is not table.key=value, such as zookeeper.connect=zk1:2181"),
        ("=3", {}, "--set : is not table.key=value, such as zookeeper.connect=zk1:2181"),
        ("a b=3", {}, "--set a b: is not table.key=value, such as zookeeper.connect=zk1:2181"),
        (
            "a=1",
            {"KZCONSUMER__": "1"},
            "KZCONSUMER__: is not KZCONSUMER__ with a table and a key, such as KZCONSUMER__GROUP__ID",
        ),
    ],
)
def test_invalid_keys(written: Written, flag: str, environment: dict[str, str], line: str) -> None:
    assert written.faults(flag, **environment) == [line]


def test_every_unreadable_file_is_reported(written: Written) -> None:
    (written.drop_ins / "a.toml").write_text("[group\n")
    (written.drop_ins / "b.toml").write_bytes(b"\xff")
    broken, foreign = written.faults()
    assert broken.startswith("group.toml.d/a.toml:1:7: is not TOML: ")
    assert foreign == "group.toml.d/b.toml: is not UTF-8 text (byte 0)"


def test_other_variables_with_that_prefix_are_ignored(written: Written) -> None:
    assert Settings.of(written.read(KZCONSUMER_STOPS="50")) == Settings.of(written.read())


def test_load_reads_the_environment(written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KZCONSUMER__GROUP__ID", "other")
    assert Settings.load(written.file).group.id == "other"
    assert Settings.of(layers_of(written.file, ["group.id=third"])).group.id == "third"


def test_the_effective_configuration_is_an_equivalent_file(written: Written, tmp_path: Path) -> None:
    (written.drop_ins / "a.toml").write_text(
        '[sink.options]\nconf."x.y" = "quo\\"ted\\u007f"\n[fetch]\nrate_limit = 1500\n'
        '[offsets]\ncommit_interval = "1500ms"\n'
        "[subscription]\nstop_at = 2026-01-31T12:00:00Z\n"
    )
    layers = written.read("log.level=debug")
    settings = Settings.of(layers)
    shown = list(as_toml(effective(settings, layers)))
    (tmp_path / "again.toml").write_text("\n".join(shown))
    again = Settings.of(layers_of(tmp_path / "again.toml"))
    assert {name: getattr(again, name) for name in SettingsFile.__struct_fields__} == {
        name: getattr(settings, name) for name in SettingsFile.__struct_fields__
    }


def test_the_effective_configuration_shows_every_key_and_no_secret(written: Written) -> None:
    (written.drop_ins / "a.toml").write_text(
        """
        [sink.options]
        password = "planted-1"
        password_file = "/run/secrets/x"
        conf = { "spark.hadoop.fs.s3a.secret.key" = "planted-2", nested = [{ api_key = "planted-3" }] }
        url = "jdbc:x://me:planted-4@host/?user=a&password=planted-5&c=d"
        "a.token" = { inner = "planted-6" }
        """
    )
    layers = written.read()
    values = effective(Settings.of(layers), layers)
    by_key = {each.key: each for each in values}
    assert {".".join(place) for place in _every_key()} - set(by_key) == {"sink.options"}
    assert by_key["group.unowned_alarm"].value == "1m"
    assert by_key["group.unowned_alarm"].written == "default"
    assert by_key["zookeeper.connect"].written == f"{written.file}:2"
    assert by_key["sink.options.password_file"].value == "/run/secrets/x"
    assert by_key["sink.options.url"].value == "jdbc:x://(hidden)@host/?user=a&password=(hidden)&c=d"
    shown = "\n".join(as_toml(values)) + repr(values)
    assert "planted" not in shown
    tomllib.loads("\n".join(as_toml(values)))


def _every_key() -> set[tuple[str, ...]]:
    from tests.core.plain.test_config import keys_of

    return {tuple(key.split(".")) for key in keys_of(Settings)}


def test_a_fault_shows_no_secret(written: Written) -> None:
    (written.drop_ins / "a.toml").write_text('[group]\nid = "zk://me:planted@host"\n')
    (fault,) = written.faults()
    assert "planted" not in fault


def test_a_list_of_thousands_of_lines_is_read_once() -> None:
    """It was tried as a whole at each of its lines, with 12 s of a processor for 3,000 of them."""
    entries = "".join(f'  "topic-{number}:0",\n' for number in range(3_000))
    text = f'[subscription]\npaused = [\n{entries}]\nstreams = 2\nrun = """\nlong\n"""\n[fetch]\nmax_wait = "1s"\n'
    began = time.process_time()
    found = layers.lines_of(text)
    assert time.process_time() - began < 1.0
    assert found["subscription", "paused"] == 2
    assert found["subscription", "streams"] == 3_004
    assert found["subscription", "run"] == 3_005
    assert found["fetch", "max_wait"] == 3_009


def test_a_byte_order_mark_is_accepted(tmp_path: Path) -> None:
    """Editors on Windows write it."""
    file = tmp_path / "group.toml"
    file.write_text(LEAST, encoding="utf-8-sig")
    assert layers_of(file).tables["group"] == {"id": "orders"}
