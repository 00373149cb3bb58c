"""`kzconsumer sink`: wrong usage, and errors that need no server."""

from __future__ import annotations

from pathlib import Path

import pytest

from kzconsumer.cli.main import main

TIMES = ["--from", "2026-01-02", "--until", "2026-01-01"]
FILE = '[zookeeper]\nconnect = "127.0.0.1:1"\n[group]\nid = "g"\n[subscription]\ntopics = { t = 1 }\n[sink]\n'


@pytest.mark.parametrize(
    ("words", "output"),
    [
        ([], "usage: kzconsumer sink"),
        (["try"], "no configuration file given; give --config FILE"),
        (["verify"], "no configuration file given; give --config FILE"),
        (["replay", *TIMES, "--config", "x"], "required: --into"),
        (["replay", "--from", "noon", *TIMES[2:], "--into", "x"], "'noon' is not a time such as 2026-01-31T12:00"),
        (["try", "-n", "0", "--config", "x"], "'0' is not a number of records, 1 to 100000"),
    ],
)
def test_wrong_usage_is_exit_status_2(capsys: pytest.CaptureFixture[str], words: list[str], output: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["sink", *words])
    assert ended.value.code == 2
    assert output in capsys.readouterr().err


def test_a_sink_without_preview_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "g.toml").write_text(FILE + 'plugin = "jsonlines"\n')
    assert main(["sink", "try", "--config", str(tmp_path / "g.toml")]) == 1
    assert 'sink "jsonlines" cannot be tried: it has no preview' in capsys.readouterr().err


def test_times_in_the_wrong_order_and_sinks_with_one_target_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "g.toml").write_text(FILE + 'plugin = "jsonlines"\n')
    words = ["--into", "x", "--config", str(tmp_path / "g.toml")]
    with pytest.raises(SystemExit) as ended:
        main(["sink", "replay", *TIMES, *words])
    assert ended.value.code == 2
    assert "--from is not before --until" in capsys.readouterr().err
    assert main(["sink", "replay", "--from", "2026-01-01", "--until", "2026-01-02", *words]) == 1
    assert 'sink "jsonlines" cannot be given another target' in capsys.readouterr().err


def test_a_zookeeper_that_does_not_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kzconsumer.fetcher.range_reader.LIMIT", 0.3)
    options = f'options = {{ destination = "parquet", path = "{tmp_path}/out" }}\n'
    (tmp_path / "g.toml").write_text(FILE + f'plugin = "spark"\n{options}')
    assert main(["sink", "try", "--config", str(tmp_path / "g.toml")]) == 1
    assert "127.0.0.1:1: ZooKeeper did not answer within" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
