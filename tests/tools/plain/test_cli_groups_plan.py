"""`kzconsumer groups plan`: wrong usage, and errors that need no server."""

from __future__ import annotations

from pathlib import Path

import pytest

from kzconsumer.cli.main import main

GOOD = '[zookeeper]\nconnect = "127.0.0.1:1"\n[group]\nid = "orders"\n'


@pytest.mark.parametrize(
    ("words", "output"),
    [
        (["plan"], "no configuration file given"),
        (["plan", "--members", "-1"], "'-1' is not a number of members"),
        (["plan", "--members", "two"], "'two' is not a number of members"),
        (["plan", "--member", "0"], "'0' is not a number of streams"),
        (["plan", "--members", "1", "--member", "1"], "not allowed with"),
        (["plan", "-o", "yaml"], "invalid choice"),
    ],
)
def test_wrong_usage_is_exit_status_2(capsys: pytest.CaptureFixture[str], words: list[str], output: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["groups", *words])
    assert ended.value.code == 2
    assert output in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "output"),
    [
        (GOOD, ": [subscription] topics: missing (or include, or exclude)"),
        (
            GOOD + '[subscription]\ntopics = { orders = 1 }\ninclude = "o.*"\n',
            ":7: [subscription] include: cannot be given together with topics",
        ),
        (
            GOOD + 'assignor = "stick"\n',
            ':5: [group] assignor: no assignor "stick" is installed',
        ),
    ],
)
def test_faults_of_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, output: str) -> None:
    file = tmp_path / "group.toml"
    file.write_text(text)
    assert main(["groups", "plan", "--config", str(file)]) == 78
    assert capsys.readouterr().err.startswith(f"kzconsumer: {file}{output}")


@pytest.mark.parametrize("cluster", ["orders --zookeeper 127.0.0.1:1", "--config group.toml"])
@pytest.mark.parametrize("option", ["--assignor stick", "--set group.assignor=stick"])
def test_the_assignor_is_the_one_that_is_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, cluster: str, option: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("group.toml").write_text(f'{GOOD}assignor = "range"\n[subscription]\ntopics = ["orders"]\n')
    assert main(["groups", "plan", *cluster.split(), *option.split()]) == 78
    said = 'kzconsumer: --set group.assignor: [group] assignor: no assignor "stick" is installed'
    assert capsys.readouterr().err.startswith(said)


def test_a_zookeeper_that_does_not_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kzconsumer.registry.cluster.LIMIT", 0.3)
    file = tmp_path / "group.toml"
    file.write_text(GOOD)
    assert main(["groups", "plan", "--config", str(file), "--members", "0"]) == 1
    output = capsys.readouterr().err.splitlines()[-1]
    assert output.startswith("kzconsumer: 127.0.0.1:1: ZooKeeper did not answer within")
