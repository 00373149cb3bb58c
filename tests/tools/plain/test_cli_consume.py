"""`kzconsumer consume`: wrong usage, and the settings that its arguments make."""

from __future__ import annotations

from pathlib import Path

import pytest

from kzconsumer.cli.main import main, whole_parser
from kzconsumer.settings.sections import SubscriptionSettings
from kzconsumer.settings.settings import Settings
from kzconsumer_tools.commands.consume_command import consume_settings

AT = ["--zookeeper", "zk"]


@pytest.mark.parametrize(
    ("words", "output"),
    [
        (["t"], "no cluster named; give --zookeeper CONNECT, --config FILE or --context CONTEXT"),
        (AT, "nothing to read: give TOPIC, --include or --exclude"),
        (["t", "--include", "a", *AT], "give topics, --include or --exclude, only one of them"),
        (["--include", "a", "--exclude", "b", *AT], "not allowed with argument --include"),
        (["--include", "(", *AT], "is not a regular expression"),
        (["t:a", *AT], "'a' is not a list of partitions"),
        (["t:0", "--group", "g", *AT], "partitions can be chosen without --group only"),
        (
            ["t", "--group", "my group", *AT],
            "'my group': is not a name made of ASCII letters, digits, '.', '_' and '-'",
        ),
        (["t", "--from", "stored", *AT], "--from stored needs a group: give --from stored:GROUP"),
        (["t", "--group", "g", "--from", "5", *AT], "--from of a group is beginning, end or stored"),
        (["t", "--group", "g", "--from", "stored:h", *AT], "--from of a group is beginning, end or stored"),
        (
            ["t", "--from", "noon", *AT],
            "'noon' is not beginning, end, stored:GROUP, an offset, -N, @MS, nor a time such as",
        ),
        (["t", "--until", "@noon", *AT], "'@noon' is not beginning, end, "),
        (["t", "--from", "2026-13-01", *AT], "'2026-13-01' is not a time such as 2026-01-31T12"),
        (["t", "--from", f"@{1 << 63}", *AT], "is too late for a time in ms since 1970"),
        (["t", "-e", "--until", "9", *AT], "-e means --until end; give one of them"),
        (["t", "--until", "stored:g", *AT], "--until is end, an offset, -N or a time"),
        (["t", "--from", "5", "--until", "5", *AT], "--from is not before --until"),
        (["t", "--from", "-2", "--until", "-3", *AT], "--from is not before --until"),
        (["t", "--from", "2026-02-01", "--until", "2026-01-01", *AT], "--from is not before --until"),
        (["t", "-c", "0", *AT], "'0' is not a number of records"),
        (["t", "-f", "%x", *AT], "%x is not a field; the fields are %s %S"),
        (["t", "-f", "%s", "-o", "json", *AT], "not allowed with argument"),
        (["t", "--key", "(a", *AT], "'(a': "),
        (["t", "--header", "=a", *AT], "the name of the header is missing"),
    ],
)
def test_wrong_usage_is_exit_status_2(capsys: pytest.CaptureFixture[str], words: list[str], output: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["consume", *words])
    assert ended.value.code == 2
    assert output in " ".join(capsys.readouterr().err.split())


def settings(*words: str) -> Settings:
    return consume_settings(whole_parser().parse_args(["consume", *words]))


def test_named_topics_are_a_white_list_in_a_group() -> None:
    assert settings("a.b", "c", *AT).subscription == SubscriptionSettings(topics={"a.b": 1, "c": 1})
    member = settings("a.b", "c", "a.b", "--group", "g", "--from", "end", *AT)
    assert member.subscription == SubscriptionSettings(include=r"a\.b|c")
    assert (member.group.id, member.offsets.reset) == ("g", "largest")
    filter = member.subscription.filter
    assert filter is not None
    assert [filter.allows(name) for name in ("a.b", "c", "axb", "ca.b")] == [True, True, False, False]


def test_a_file_supplies_what_the_arguments_omit(tmp_path: Path) -> None:
    file = tmp_path / "group.toml"
    file.write_text(
        '[zookeeper]\nconnect = "zk1"\n[group]\nid = "g"\nassignor = "roundrobin"\n[subscription]\ntopics = { t = 2 }\n'
        '[offsets]\nreset = "largest"\n[fetch]\nisolation = "read_committed"\n'
    )
    found = settings("--config", str(file))
    assert (found.subscription.topics, found.fetch.isolation) == ({"t": 1}, "read_committed")
    member = settings("--config", str(file), "--group", "h")
    assert (member.group.id, member.group.assignor, member.subscription.include) == ("h", "roundrobin", "t")
    assert member.offsets.reset == "largest"
    assert settings("--config", str(file), "--exclude", "x").subscription == SubscriptionSettings(exclude="x")
