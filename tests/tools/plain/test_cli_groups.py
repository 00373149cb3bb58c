"""`kzconsumer groups`: wrong usage, and errors that need no server."""

from __future__ import annotations

from pathlib import Path

import pytest

from kzconsumer.cli.main import main

FILE = '[zookeeper]\nconnect = "127.0.0.1:1"\n[group]\nid = "orders"\n'


@pytest.mark.parametrize(
    ("words", "output"),
    [
        ([], "usage: kzconsumer groups"),
        (["list"], "no cluster named; give --zookeeper CONNECT, --config FILE or --context CONTEXT"),
        (["describe", "orders"], "no cluster named; give --zookeeper CONNECT, --config FILE or --context CONTEXT"),
        (["describe", "--zookeeper", "zk"], "no group named; give GROUP, or --config FILE"),
        (["list", "--zookeeper", "zk", "--config", "group.toml"], "both name a cluster; give one of them"),
        (["list", "--zookeeper", "zk:port"], "'zk:port' is not a list of hosts"),
        (["list", "--zookeeper", "zk/a/"], 'ends in "/a/", which is not a ZooKeeper path'),
        (["describe", "orders/ids", "--zookeeper", "zk"], "'orders/ids' is not the name of a group"),
        (["describe", "orders", "payments", "--zookeeper", "zk"], "unrecognized arguments"),
        (["list", "--zookeeper", "zk", "-o", "yaml"], "invalid choice"),
    ],
)
def test_wrong_usage_is_exit_status_2(capsys: pytest.CaptureFixture[str], words: list[str], output: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["groups", *words])
    assert ended.value.code == 2
    assert output in capsys.readouterr().err


@pytest.mark.parametrize("words", [["list"], ["describe"], ["describe", "orders"]])
def test_faults_of_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    file = tmp_path / "group.toml"
    file.write_text(FILE.replace("id =", "idd ="))
    assert main(["groups", *words, "--config", str(file)]) == 78
    assert f"kzconsumer: {file}:4: [group] idd: unknown key; did you mean id?" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["list"], ["describe"]])
def test_a_zookeeper_that_does_not_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    monkeypatch.setattr("kzconsumer.registry.cluster.LIMIT", 0.3)
    file = tmp_path / "group.toml"
    file.write_text(FILE)
    assert main(["groups", *words, "--config", str(file)]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith("kzconsumer: 127.0.0.1:1: ZooKeeper did not answer within 0 s (127.0.0.1:1: ")
    assert line.endswith("; check that host and port are ZooKeeper's (usually 2181), not a broker's")
