"""`kzconsumer offsets`, `lag` and the newer verbs of `groups`: wrong usage, and errors that need no server."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kzconsumer.cli.main import main

AT = ["--zookeeper", "zk"]
ROOT = Path(__file__).parents[3]
_RESET = re.compile(r"kzconsumer offsets reset[^`\n]* --(?:to|shift|by)-[^`\n]*")


@pytest.mark.parametrize(
    ("words", "output"),
    [
        (["offsets"], "usage: kzconsumer offsets"),
        (["offsets", "show", "g"], "no cluster named; give --zookeeper CONNECT, --config FILE or --context CONTEXT"),
        (["offsets", "reset", "g", "--all-topics", *AT], "one of the arguments --to-earliest --to-latest"),
        (["offsets", "reset", "g", "--to-latest", *AT], "give --topic TOPIC (one or more), or --all-topics"),
        (["offsets", "reset", "g", "--to-latest", "--all-topics", "--topic", "t", *AT], "give --topic TOPIC"),
        (["offsets", "reset", "--to-latest", "--all-topics", *AT], "no group named; give GROUP, or --config FILE"),
        (["offsets", "reset", "g", "--to-latest", "--to-earliest", *AT], "not allowed with argument --to-latest"),
        (["offsets", "reset", "g", "--to-offset", "-1", *AT], "'-1' is not an offset"),
        (["offsets", "reset", "g", "--to-datetime", "noon", *AT], "'noon' is not a time such as 2026-01-31T12"),
        (["offsets", "reset", "g", "--to-datetime", "1969-12-31T23:59:59.999", *AT], "59.999' is before 1970"),
        (["offsets", "reset", "g", "--by-duration", "1h", *AT], "'1h' is not a duration such as PT1H30M or P7D"),
        (["offsets", "reset", "g", "--by-duration", "PT", *AT], "'PT' is not a duration"),
        (["offsets", "reset", "g", "--by-duration", f"P{'9' * 400}D", *AT], "ago is before 1970"),
        (["offsets", "reset", "g", "--to-latest", "--topic", "t:a", *AT], "'a' is not a list of partitions"),
        (["offsets", "reset", "g", "--to-latest", "--topic", "t/1", *AT], "'t/1' is not a topic name"),
        (["offsets", "reset", "g", "--from-file", "f", "--topic", "t", *AT], "without --topic and --all-topics"),
        (["offsets", "clone", "g", *AT], "required: TO"),
        (["offsets", "export", "g", "--format", "yaml", *AT], "invalid choice"),
        (["lag", *AT], "no group named; give GROUP, --all, or --config FILE"),
        (["lag", "g", "--interval", "0", *AT], "'0' is not a number of seconds"),
        (["lag", "g", "--interval", "5", *AT], "--interval is of --watch; give it too"),
        (["lag", "--all", "--interval", "5", *AT], "--all is about all groups, once, by their offsets in ZooKeeper"),
        (["lag", "--all", "--storage", "kafka", *AT], "give it without GROUP, --topic, --watch, --interval and --stor"),
        (["groups", "delete", "a/b", *AT], "'a/b' is not the name of a group"),
        (["groups", "restore", *AT], "required: FILE"),
        (["groups", "move", "g", *AT], "one of the arguments --to-kafka --from-kafka is required"),
        (["groups", "move", "g", "--to-kafka", "--from-kafka", "k", *AT], "not allowed with argument --to-kafka"),
        (["groups", "move", "g", "--to-kafka", "a/b", *AT], "'a/b' is not the name of a group"),
        (["groups", "move", "g", "--to-kafka", "k", "--verify", "--execute", *AT], "--verify only compares"),
        (["groups", "move", "--to-kafka", "k", *AT], "no group named; give GROUP, or --config FILE"),
    ],
)
def test_wrong_usage_is_exit_status_2(capsys: pytest.CaptureFixture[str], words: list[str], output: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert output in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("words", "content", "output"),
    [
        (["offsets", "import"], b"t,0\n", "line 1: not topic,partition,offset, nor group,topic,partition,offset"),
        (["offsets", "import"], None, "cannot be read: No such file or directory"),
        (["offsets", "import", "--group", "other"], b"/consumers/g/offsets/t/0:3\n", "no offset of group other"),
        (
            ["groups", "restore"],
            b"/consumers/g/offsets/t/0:3\n",
            "line 1: not a node of an undo file: JSON is malformed",
        ),
        (["groups", "restore"], b'{"path":"/brokers","data":""}\n', "not the nodes of one group"),
    ],
)
def test_files_that_cannot_be_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], content: bytes | None, output: str
) -> None:
    file = tmp_path / "file"
    if content is not None:
        file.write_bytes(content)
    assert main([*words, str(file), *AT]) == 1
    assert capsys.readouterr().err.startswith(f"kzconsumer: {file}: {output}")


def test_a_file_without_a_group(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "file"
    file.write_text("t,0,1\n")
    with pytest.raises(SystemExit) as ended:
        main(["offsets", "import", str(file), *AT])
    assert ended.value.code == 2
    assert "the file names no group; give --group GROUP" in capsys.readouterr().err


def test_every_reset_that_pages_and_messages_advise_says_of_which_topics() -> None:
    """Without `--topic` or `--all-topics` it is refused."""
    texts = [*ROOT.glob("docs/*.md"), *ROOT.glob("kzconsumer/**/*.py"), *ROOT.glob("plugins/*/kzconsumer_*/**/*.py")]
    advised = [each for file in texts for each in _RESET.findall(file.read_text())]
    assert len(advised) > 5
    assert [each for each in advised if "--topic" not in each and "--all-topics" not in each] == []
