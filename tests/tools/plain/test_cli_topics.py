"""`kzconsumer topics`: wrong usage of the verbs that change something."""

from __future__ import annotations

from pathlib import Path

import pytest

from kzconsumer.cli.main import main

AT = ["--zookeeper", "zk"]


@pytest.mark.parametrize(
    ("words", "output"),
    [
        (["reassign", *AT], "give TOPIC:PARTITION=BROKERS (one or more), or --file FILE"),
        (["reassign", "t:0=1", "--file", "f", *AT], "give TOPIC:PARTITION=BROKERS (one or more), or --file FILE"),
        (["reassign", "t:0=1", "t:0=2", *AT], "a partition is given twice"),
        (["reassign", "t=1", *AT], "'t=1' is not TOPIC:PARTITION=BROKER,BROKER such as orders:0=2,1"),
        (["reassign", "t:0=", *AT], "'t:0=' is not TOPIC"),
        (["reassign", "t:0=1"], "no cluster named"),
        (["elect-preferred", "t:x", *AT], "'x' is not a list of partitions"),
        (["delete", *AT], "the following arguments are required: TOPIC"),
        (["delete", "t", "--wait", "-1", *AT], "'-1' is not a number of seconds"),
        (["delete", "t", "--wait", "soon", *AT], "'soon' is not a number of seconds"),
        (["config", "set", "t", *AT], "nothing to change: give NAME=VALUE, or --unset NAME"),
        (["config", "set", "t", "a", *AT], "'a' is not NAME=VALUE"),
        (["config", "set", "t", "a=1", "--unset", "a", *AT], "a setting is given twice"),
        (["config"], "usage: kzconsumer topics config [-h] ACTION"),
    ],
)
def test_wrong_usage_is_exit_status_2(capsys: pytest.CaptureFixture[str], words: list[str], output: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["topics", *words])
    assert ended.value.code == 2
    assert output in " ".join(capsys.readouterr().err.split())


def test_a_file_that_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "moves.json"
    assert main(["topics", "reassign", "--file", str(file), *AT]) == 1
    assert f"{file}: cannot be read" in capsys.readouterr().err
    file.write_text('{"partitions":[{"topic":"t"}]}')
    assert main(["topics", "reassign", "--file", str(file), *AT]) == 1
    assert f"{file}: not in the format of kafka-reassign-partitions.sh: " in capsys.readouterr().err
