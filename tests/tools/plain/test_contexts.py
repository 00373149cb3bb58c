"""Which cluster a command uses: options, variables and the current context, in that order; and `kzconsumer context`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kzconsumer.cli.main import main, whole_parser
from kzconsumer_tools.commands.cluster_option import ClusterOption, cluster_flags, cluster_option

FILE = '[zookeeper]\nconnect = "of-file"\n[group]\nid = "orders"\n'


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "group.toml").write_text(FILE)
    return tmp_path


def chosen(*words: str) -> ClusterOption:
    return cluster_option(whole_parser().parse_args(["lag", *words]))


def flags(*words: str) -> str:
    return cluster_flags(whole_parser().parse_args(["lag", *words]))


def set_context(name: str, *settings: str) -> None:
    assert main(["context", "set", name, *settings]) == 0


def test_options_come_before_variables_and_these_before_the_current_context(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_context("first", "zookeeper.connect=of-first")
    set_context("second", "zookeeper.connect=of-second")
    assert chosen().zookeeper.connect == "of-first"
    assert flags() == "--context first"
    monkeypatch.setenv("KZCONSUMER__ZOOKEEPER__CONNECT", "of-variable:1")
    assert chosen().zookeeper.connect == "of-variable:1"
    assert flags() == "--zookeeper of-variable:1"
    assert chosen("--zookeeper", "of-option").zookeeper.connect == "of-option"
    assert chosen("--context", "second").zookeeper.connect == "of-second"
    assert flags("--context", "second") == "--context second"
    monkeypatch.delenv("KZCONSUMER__ZOOKEEPER__CONNECT")
    of_file = chosen("--config", str(home / "group.toml"))
    assert (of_file.zookeeper.connect, of_file.group) == ("of-file", "orders")


def test_encryption_and_passwords_need_no_file_of_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KZCONSUMER__BROKERS__SECURITY_PROTOCOL", "SASL_SSL")
    secured = ["--set", "brokers.sasl.username=me", "--set", 'brokers.tls={ ca = "ca.pem" }']
    by_option = chosen("--zookeeper", "zk", *secured)
    assert by_option.brokers.security_protocol == "SASL_SSL"
    assert (by_option.brokers.sasl.username, by_option.brokers.tls.ca) == ("me", "ca.pem")
    assert by_option.group is None

    monkeypatch.delenv("KZCONSUMER__BROKERS__SECURITY_PROTOCOL")
    set_context("prod", "zookeeper.connect=zk", "brokers.security_protocol=SSL", "brokers.tls.ca=ca.pem")
    by_context = chosen()
    assert (by_context.brokers.security_protocol, by_context.brokers.tls.ca) == ("SSL", "ca.pem")


def test_variables_of_another_cluster_do_not_reach_a_named_context(monkeypatch: pytest.MonkeyPatch) -> None:
    set_context("prod", "zookeeper.connect=zk")
    monkeypatch.setenv("KZCONSUMER__BROKERS__SECURITY_PROTOCOL", "SSL")
    assert chosen("--context", "prod").brokers.security_protocol == "PLAINTEXT"


@pytest.mark.parametrize("pair", [("zookeeper", "config"), ("zookeeper", "context"), ("config", "context")])
def test_two_options_that_name_a_cluster(capsys: pytest.CaptureFixture[str], pair: tuple[str, str]) -> None:
    with pytest.raises(SystemExit) as ended:
        chosen(f"--{pair[0]}", "a", f"--{pair[1]}", "b")
    assert ended.value.code == 2
    assert f"--{pair[0]} and --{pair[1]} both name a cluster; give one of them" in capsys.readouterr().err


def test_a_context_keeps_what_is_not_set_again(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    set_context("prod", "zookeeper.connect=zk1:2181,zk2:2181/kafka", "zookeeper.session_timeout=4s")
    set_context("prod", "zookeeper.session_timeout=5s")
    set_context("test", "zookeeper.connect=other")
    assert chosen().zookeeper.connect == "zk1:2181,zk2:2181/kafka"
    assert chosen().zookeeper.session_timeout == 5.0
    capsys.readouterr()
    assert main(["context", "use", "test"]) == 0
    assert main(["context", "list", "-o", "json"]) == 0
    first, *_, listed = capsys.readouterr().out.splitlines()
    assert first == "the current context is test"
    assert [(each["name"], each["current"], each["zookeeper"]) for each in json.loads(listed)] == [
        ("prod", False, "zk1:2181,zk2:2181/kafka"),
        ("test", True, "other"),
    ]


def test_a_deleted_context_is_not_the_current_one_any_more(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    set_context("prod", "zookeeper.connect=zk")
    set_context("test", "zookeeper.connect=other")
    assert main(["context", "delete", "test"]) == 0
    assert chosen().zookeeper.connect == "zk"
    assert main(["context", "delete", "prod"]) == 0
    assert capsys.readouterr().out.endswith("deleted test\ndeleted prod; there is no current context\n")
    with pytest.raises(SystemExit):
        chosen()
    assert not list((home / "kzconsumer").rglob("*.toml"))


@pytest.mark.parametrize(
    ("words", "status", "output"),
    [
        (["set", "a", "zookeeper.conect=zk"], 78, ": zookeeper.conect: [zookeeper] conect: unknown key; did"),
        (["set", "a", "zookeper.connect=zk"], 78, "kzconsumer: zookeper.connect: zookeper: unknown key; did you mean"),
        (["set", "a", "brokers.listener=X"], 78, "kzconsumer: context a: [zookeeper] connect: missing"),
        (["set", "a", "zookeeper.connect=zk", "sink.plugin=spark"], 78, "[sink]: a context has [zookeeper] and"),
        (["delete", "a"], 1, "there is no context a; `kzconsumer context set` creates one"),
        (["use", "a"], 1, "there is no context a; `kzconsumer context set` creates one"),
    ],
)
def test_faults(home: Path, capsys: pytest.CaptureFixture[str], words: list[str], status: int, output: str) -> None:
    assert main(["context", *words]) == status
    assert output in capsys.readouterr().err
    assert not (home / "kzconsumer" / "contexts" / "a.toml").exists()


@pytest.mark.parametrize(("content", "why"), [(None, "Is a directory"), (b"\xff", "not UTF-8")])
def test_a_current_context_that_cannot_be_read(
    home: Path, capsys: pytest.CaptureFixture[str], content: bytes | None, why: str
) -> None:
    file = home / "kzconsumer" / "current-context"
    file.parent.mkdir()
    file.mkdir() if content is None else file.write_bytes(content)
    assert main(["lag", "orders"]) == 1
    assert capsys.readouterr().err == f"kzconsumer: cannot read {file} ({why}): give --context NAME\n"


def test_a_context_is_written_as_it_is_read_in_any_locale(home: Path) -> None:
    """TOML is UTF-8."""
    program = "from kzconsumer_tools import contexts; contexts.change('prod', ['zookeeper.connect=zk/' + chr(0xe4)])"
    ascii_only = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    subprocess.run([sys.executable, "-c", program], env={**os.environ, **ascii_only}, check=True)
    assert chosen("--context", "prod").zookeeper.connect == "zk/\u00e4"


def test_a_context_that_is_gone_names_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    set_context("prod", "zookeeper.connect=zk")
    capsys.readouterr()
    assert main(["lag", "orders", "--context", "prd"]) == 1
    assert capsys.readouterr().err == "kzconsumer: there is no context prd; there are prod\n"
