"""Configurations on the command line: every fault is reported at once, in a line, and what is in effect is shown."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path
from types import ModuleType

import pytest

from kzconsumer.cli.checks import checked
from kzconsumer.cli.main import main
from kzconsumer.errors import ConfigError
from kzconsumer.settings.settings import layers_of
from kzconsumer.sinks.capabilities import check_sink
from tests.support.command_line import GOOD, Done, kzconsumer, kzconsumer_process


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "group.toml"


@pytest.mark.parametrize(
    "verb", [["--config"], ["run"], ["run", "--config"], ["check-config"], ["check-config", "--config"]]
)
def test_faults_of_the_file_are_lines_and_exit_status_78(file: Path, verb: list[str]) -> None:
    file.write_text(GOOD.replace("id =", "idd =").replace('connect = "127.0.0.1:2181"', "connect = 2181"))
    done = kzconsumer(*verb, str(file))
    assert done.status == 78
    assert done.out == ""
    assert done.err.splitlines() == [
        f"kzconsumer: {file}:3: [zookeeper] connect: 2181 is not a list of hosts such as "
        '"zk1:2181,zk2:2181" or "zk1:2181,zk2:2181/chroot"',
        f"kzconsumer: {file}:5: [group] idd: unknown key; did you mean id?",
        f"kzconsumer: {file}: [group] id: missing",
    ]


@pytest.mark.parametrize("verb", ["--config", "check-config"])
def test_a_missing_file(file: Path, verb: str) -> None:
    done = kzconsumer_process(verb, str(file))
    assert (done.status, done.err) == (78, f"kzconsumer: {file}: cannot be read: No such file or directory\n")


@pytest.mark.parametrize("verb", ["--config", "check-config"])
def test_the_daemon_needs_topics_and_a_sink(file: Path, verb: str) -> None:
    file.write_text('[zookeeper]\nconnect = "zk"\n[group]\nid = "a"\n')
    done = kzconsumer(verb, str(file))
    assert done.status == 78
    assert done.err.splitlines() == [
        f"kzconsumer: {file}: [subscription] topics: missing (or include, or exclude)",
        f"kzconsumer: {file}: [sink] plugin: missing",
    ]


def test_check_config_reports_that_there_is_no_fault(file: Path) -> None:
    file.write_text(GOOD)
    done = kzconsumer("check-config", str(file))
    assert (done.status, done.out, done.err) == (0, f"{file}: no fault found\n", "")


def test_check_config_checks_plugin_options(file: Path) -> None:
    file.write_text(GOOD.replace('id = "orders"', 'id = "orders"\nassignor = "rang"') + "[sink.options]\nindent = 2\n")
    done = kzconsumer("check-config", str(file))
    assert done.status == 78
    assignor, options = done.err.splitlines()
    assert assignor.startswith(
        f'kzconsumer: {file}:6: [group] assignor: no assignor "rang" is installed; did you mean "range"?'
    )
    assert options.startswith(f"kzconsumer: {file}:12: [sink.options] indent: unknown key")


def test_check_config_checks_the_path_of_the_sink(file: Path) -> None:
    there = file.with_name("there")
    there.touch()
    file.write_text(GOOD.replace('"jsonlines"', f'"parquet"\noptions = {{ path = "{there}" }}'))
    done = kzconsumer("check-config", str(file))
    assert done.status == 78
    output = f"[sink.options] path: {there} cannot be used: {there} is not a directory"
    assert done.err == f"kzconsumer: {file}:10: {output}\n"


@pytest.mark.parametrize("verb", ["--config", "check-config"])
def test_an_unknown_plugin_is_a_fault_of_the_file(file: Path, verb: str) -> None:
    file.write_text(GOOD.replace("jsonlines", "jsnlines"))
    done = kzconsumer(verb, str(file))
    assert done.status == 78
    (line,) = done.err.splitlines()
    assert line.startswith(f'kzconsumer: {file}:9: [sink] plugin: no sink "jsnlines" is installed')


FAULTY = """
[zookeeper]
connect = "127.0.0.1:1"
[group]
revoke_deadline = 5
assignor = "rang"
[subscription]
topics = { orders = 0 }
[brokers]
security_protocol = "SASL_SSL"
[sink]
on_batch_failure = "go on"
plugin = "callable"
options = { function = "not_there:write" }
[log]
level = "loud"
"""


@pytest.mark.parametrize("verb", ["--config", "check-config"])
def test_every_fault_is_reported_at_once_and_before_any_request(file: Path, verb: str) -> None:
    """Unreadable values hide neither plugins nor their options, nor an incomplete table."""
    file.write_text(FAULTY)
    done = kzconsumer(verb, str(file))
    assert done.status == 78
    output = {}
    for line in done.err.splitlines():
        place, reason = re.findall(r": +((?:\d+: )?\[[\w.]+\] [\w.]+): (.*)", line.replace(f"{file}:", ""))[0]
        output[place] = reason
    assert list(output) == [
        "5: [group] revoke_deadline",
        "[group] id",
        "8: [subscription] topics.orders",
        "12: [sink] on_batch_failure",
        "16: [log] level",
        "6: [group] assignor",
        "14: [sink.options] function",
        "[brokers.sasl] mechanism",
        "[brokers.sasl] username",
        "[brokers.sasl] password_file",
    ]
    assert len(output) == len(done.err.splitlines())
    assert 'no assignor "rang"' in output["6: [group] assignor"]
    assert "cannot import not_there" in output["14: [sink.options] function"]


ZOOKEEPER_AND_GROUP = '[zookeeper]\nconnect = "127.0.0.1:1"\n[group]\nid = "g"\n'


@pytest.mark.parametrize(
    ("tables", "output"),
    [
        (
            '[subscription]\ntopics = { t = 1 }\ninclude = "x"\n[rejected]\npolicy = "drop"\n[sink]\nplugin = "no"\n',
            ["[rejected] policy", "[subscription] include", "[sink] plugin"],
        ),
        ('[rejected]\npolicy = "drop"\n', ["[rejected] policy", "[subscription] topics", "[sink] plugin"]),
        (
            '[log]\nlevel = "loud"\nformat = "journald"\n[subscription]\ntopics = { t = 1 }\nrun = "a/b"\n[sink]\n'
            'on_batch_failure = "no"\nplugin = "no"\n',
            ["[log] level", "[subscription] run", "[sink] on_batch_failure", "[sink] plugin", "[log] format"],
        ),
        (
            '[brokers]\nsecurity_protocol = "SSL"\nlistener = ""\ntls = { ca = "/not/there" }\n'
            '[status]\nstalled_after = "no"\nlisten = "0.0.0.0:1"\ntoken_file = "/not/there"\n',
            [
                "[brokers] listener",
                "[status] stalled_after",
                "[subscription] topics",
                "[sink] plugin",
                "[brokers.tls] ca",
                "[status] token_file",
            ],
        ),
        # An unreadable value is not taken for a missing one.
        (
            '[subscription]\ntopics = 3\n[sink]\nplugin = "jsonlines"\noptions = 3\n'
            '[brokers]\nsecurity_protocol = "no"\ntls = { ca = "/not/there" }\n',
            ["[subscription] topics", "[sink] options", "[brokers] security_protocol"],
        ),
        # Two keys of which neither is valid alone, beside one that is not valid.
        (
            '[rejected]\npolicy = "dead-letter"\ntopic = "t"\nfile_bytes = "no"\n[brokers]\n'
            'security_protocol = "SASL_SSL"\nsasl = { mechanism = "GSSAPI" }\n[subscription]\ntopics = { a = 1 }\n'
            '[sink]\nplugin = "no"\n',
            ["[rejected] file_bytes", "[sink] plugin", "[rejected] topic"],
        ),
        (
            '[rejected]\ndirectory = "/x"\n[fetch]\nquarantine = "/x"\n[subscription]\ntopics = { a = 1 }\n',
            ["[rejected]: directory", "[fetch]: quarantine", "[sink] plugin"],
        ),
    ],
    ids=["both subscriptions", "no subscription", "log", "files", "unreadable", "two together", "nothing goes there"],
)
def test_a_fault_hides_no_other(file: Path, tables: str, output: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kzconsumer.logs.setup.SOCKET", file / "no journal")
    monkeypatch.setitem(sys.modules, "gssapi", ModuleType("gssapi"))  # it needs a compiler
    file.write_text(ZOOKEEPER_AND_GROUP + tables)
    with pytest.raises(ConfigError) as caught:
        checked(layers_of(file), check_sink)
    found = [re.findall(r"\[[\w.]+\]:? \w+", line)[0] for line in caught.value.faults]
    assert found == output


def test_a_fault_of_zookeepers_table_does_not_hide_its_files(file: Path) -> None:
    file.write_text(
        GOOD.replace("[group]", 'session_timeout = "no"\nsecure = true\ntls = { ca = "/not/there" }\n[group]', 1)
    )
    with pytest.raises(ConfigError) as caught:
        checked(layers_of(file), check_sink)
    assert ["session_timeout" in line or "[zookeeper.tls] ca" in line for line in caught.value.faults] == [True, True]


@pytest.mark.parametrize("verb", ["--config", "check-config"])
@pytest.mark.parametrize(
    ("changed", "begin"),
    [
        ('id = "orders"\nassignor = "rang"', "6: [group] assignor: no assignor"),
        ('id = "orders"\n[offsets]\nstorage = "kafka"\ndual_commit = false', "8: [offsets] dual_commit: "),
    ],
    ids=["an assignor that is not installed", "storage that the run cannot have"],
)
def test_a_daemon_with_a_faulty_file_contacts_no_server(file: Path, verb: str, changed: str, begin: str) -> None:
    file.write_text(GOOD.replace('id = "orders"', changed).replace("1 }", '1 }\nstop_at = "end"'))
    done = kzconsumer(verb, str(file), "--set", "zookeeper.connect=127.0.0.1:1")
    assert done.status == 78
    (line,) = done.err.splitlines()
    assert line.startswith(f"kzconsumer: {file}:{begin}")


@pytest.mark.parametrize("before", [[], ["run"], ["check-config"]])
def test_flags_and_variables_are_read_and_named_in_faults(
    file: Path, before: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text(GOOD)
    monkeypatch.setenv("KZCONSUMER__LOG__LEVEL", "loud")
    done = kzconsumer(*before, "--config", str(file), "--set", "batch.max_records=0", "--set", "group.idd=x")
    assert done.status == 78
    assert sorted(done.err.splitlines()) == [
        "kzconsumer: --set batch.max_records: [batch] max_records: 0 is less than 1",
        "kzconsumer: --set group.idd: [group] idd: unknown key; did you mean id?",
        'kzconsumer: KZCONSUMER__LOG__LEVEL: [log] level: "loud" is not one of debug, error, info, warning',
    ]


@pytest.mark.parametrize(
    "words",
    [
        "lag",
        "offsets show",
        "offsets import some.json",
        "groups list",
        "groups describe",
        "groups plan",
        "sink try",
        "sink verify",
        "sink replay --from 2026-01-01 --until 2026-01-02 --into x",
        "run --run today --set subscription.stop_at=end",
    ],
)
def test_every_verb_with_a_settings_file_reads_all_layers(
    file: Path, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(GOOD)
    drop_in = Path(f"{file}.d") / "50.toml"
    drop_in.parent.mkdir()
    drop_in.write_text("[fetch]\nmax_byte = 1\n")
    monkeypatch.setenv("KZCONSUMER__LOG__LEVEL", "loud")
    assert main(["--set", "batch.max_records=0", *words.split(), "--config", str(file), "--set", "group.idd=x"]) == 78
    named = {line.removeprefix("kzconsumer: ").split(": ")[0] for line in capsys.readouterr().err.splitlines()}
    assert named == {"--set batch.max_records", "--set group.idd", "KZCONSUMER__LOG__LEVEL", f"{drop_in}:2"}


def test_the_effective_configuration(file: Path) -> None:
    file.write_text(GOOD)
    flags = ["--set", "offsets.commit_interval=3s", "check-config", str(file), "--effective", "--set", "group.id=other"]
    done = kzconsumer(*flags)
    assert done.status == 0
    assert "--set offsets.commit_interval" in done.out
    assert ["id", "=", '"other"', "#", "--set", "group.id"] in [line.split() for line in done.out.splitlines()]
    done = kzconsumer("check-config", str(file), "--effective", "-o", "json")
    found = {each["key"]: each for each in json.loads(done.out)}
    assert found["zookeeper.connect"] == {
        "key": "zookeeper.connect", "value": "127.0.0.1:2181", "origin": "file", "source": str(file), "line": 3
    }  # fmt: skip
    assert found["offsets.reset"]["origin"] == "default"


def test_the_effective_configuration_is_what_the_page_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last two examples of docs/configuration.md."""
    page = (Path(__file__).parents[3] / "docs" / "configuration.md").read_text()
    effective, faulty = re.findall(r"(?ms)^```\n\$ (.*?)^```$", page)[-2:]
    (tmp_path / "orders.toml").write_text(GOOD)
    (tmp_path / "orders.toml.d").mkdir()
    drop_in = tmp_path / "orders.toml.d" / "50-small.toml"
    drop_in.write_text("[batch]\nmax_records = 1000\n")
    monkeypatch.chdir(tmp_path)

    def shown(text: str) -> tuple[Done, list[list[str]]]:
        command, *lines = text.splitlines()
        variables, _, words = command.rpartition("kzconsumer ")
        for name, value in (each.split("=", 1) for each in variables.split()):
            monkeypatch.setenv(name, value)
        return kzconsumer(*shlex.split(words)), [line.split() for line in lines if line != "..."]

    done, lines = shown(effective)
    assert done.status == 0
    output = [line.split() for line in done.out.splitlines()]
    assert [line for line in lines if line not in output] == []
    monkeypatch.delenv("KZCONSUMER__LOG__LEVEL")
    drop_in.write_text("[batch]\n\nmax_recrds = 1000\n")
    done, lines = shown(faulty)
    assert done.status == 78
    assert sorted(line.split() for line in done.err.splitlines()) == sorted(lines)


def test_mistakes_are_reported_as_the_page_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first example in docs/configuration.md, mistyped in two places."""
    page = (Path(__file__).parents[3] / "docs" / "configuration.md").read_text()
    (good,) = (each for each in re.findall(r"(?ms)^```toml\n(.*?)^```$", page) if each.startswith("# group.toml\n"))
    (command, answer) = re.findall(r"(?ms)^```\n\$ kzconsumer (check-config [^\n]*)\n(.*?)^```$", page)[0]
    lines = good.replace("connect =", "conect =").splitlines()
    sink = lines.index("[sink]")
    lines[sink:sink] = ["[offsets]", 'reset = "smalest"']
    (tmp_path / "group.toml").write_text("\n".join(lines))
    monkeypatch.chdir(tmp_path)
    done = kzconsumer(*shlex.split(command))
    assert (done.status, done.out) == (78, "")
    assert done.err == answer
