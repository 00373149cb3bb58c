"""Plugins are found through entry points; every error names the plugin and the distribution."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from kzconsumer import __version__
from kzconsumer.cli.main import whole_parser
from kzconsumer.errors import ConfigError, PluginError
from kzconsumer.installation import pip_install
from kzconsumer.plugins import ASSIGNORS, COMMANDS, SINKS, list_plugins, load, load_chosen, require_extra
from tests.support.installed_plugins import install


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory into which distributions can be installed."""
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_the_built_in_plugins_come_from_our_distribution() -> None:
    found = {plugin.name: plugin.distribution.split()[0] for plugin in list_plugins(SINKS)}
    assert found["jsonlines"] == found["callable"] == "kzconsumer"
    assert "range" in [plugin.name for plugin in list_plugins(ASSIGNORS)]


def test_a_third_party_plugin_is_loaded(site: Path) -> None:
    (site / "strange.py").write_text("answer = 42\n")
    install(site, "strange-sink", SINKS, "strange = strange:answer")
    assert load(SINKS, "strange") == 42


def test_an_unknown_name_is_reported_with_the_most_similar_one(site: Path) -> None:
    install(site, "strange-sink", SINKS, "strange = strange:answer")
    with pytest.raises(PluginError) as caught:
        load(SINKS, "strnage")
    assert 'no sink "strnage" is installed; did you mean "strange"?' in str(caught.value)
    assert "strange" in str(caught.value).rpartition("installed are ")[2].split(", ")


def ours() -> Iterator[tuple[str, str, str]]:
    """The plugins of kzconsumer's own distributions, as their pyproject.toml declares them: group, name, extra."""
    for project in (Path(__file__).parents[3] / "plugins").glob("*/pyproject.toml"):
        for group, entries in tomllib.loads(project.read_text())["project"]["entry-points"].items():
            yield from ((group, name, project.parent.name) for name in entries)


@pytest.mark.parametrize(("group", "name", "extra"), sorted(ours()))
def test_a_missing_plugin_of_ours_is_reported_with_what_installs_it(
    group: str, name: str, extra: str, site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [str(site)])
    with pytest.raises(PluginError, match=rf'no \w+ "{name}" is installed; {re.escape(pip_install(extra))} brings it'):
        load(group, name)
    extras = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    assert f"kzconsumer-{extra}=={__version__}" in extras["optional-dependencies"][extra]


def test_a_name_near_one_that_is_not_installed_is_reported_with_what_installs_it(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [str(site)])
    with pytest.raises(PluginError, match=rf'did you mean "lag", which {re.escape(pip_install("tools"))} brings\? '):
        load(COMMANDS, "lgs", beside=("run", "check-config", "plugins"))


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import surely_not_installed", "ModuleNotFoundError: No module named 'surely_not_installed'"),
        ("answer = 1 / 0", "ZeroDivisionError: division by zero"),
        ("", "AttributeError: module 'broken' has no attribute 'answer'"),
    ],
)
def test_a_plugin_that_cannot_be_loaded(site: Path, monkeypatch: pytest.MonkeyPatch, source: str, reason: str) -> None:
    monkeypatch.delitem(__import__("sys").modules, "broken", raising=False)
    (site / "broken.py").write_text(source)
    install(site, "broken-sink", SINKS, "broken = broken:answer")
    with pytest.raises(PluginError) as caught:
        load(SINKS, "broken")
    begin = 'sink "broken" (broken:answer, from broken-sink 1.0) cannot be loaded: '
    assert str(caught.value) == begin + reason


def test_two_distributions_with_one_name_are_both_named(site: Path) -> None:
    install(site, "first-sink", SINKS, "twice = first:answer")
    install(site, "second-sink", SINKS, "twice = second:answer")
    with pytest.raises(PluginError, match=r"first:answer from first-sink 1\.0 and second:answer from second-sink 1\.0"):
        load(SINKS, "twice")


def test_a_name_in_the_settings_is_a_fault_of_the_settings() -> None:
    with pytest.raises(ConfigError) as caught:
        load_chosen(SINKS, "jsonline", "group.toml: [sink] plugin")
    (line,) = caught.value.faults
    assert line.startswith('group.toml: [sink] plugin: no sink "jsonline" is installed')
    assert 'did you mean "jsonlines"?' in line


def test_a_module_of_an_extra_that_is_installed_and_cannot_be_imported_is_reported_with_the_reason(site: Path) -> None:
    (site / "broken_client.py").write_text("raise ImportError('libclient.so.1: cannot open shared object file')")
    require_extra("group.toml: [rejected] topic", "dead-letter", "json")
    with pytest.raises(ConfigError) as caught:
        require_extra("group.toml: [rejected] topic", "dead-letter", "json", "broken_client", "surely_not_installed")
    assert caught.value.faults == (
        "group.toml: [rejected] topic: needs broken_client (libclient.so.1: cannot open shared object file)"
        f" and surely_not_installed: {pip_install('dead-letter')}",
    )


def test_a_broken_command_is_listed_and_leaves_the_help(site: Path) -> None:
    """A command with that name cannot replace one of the core either."""
    (site / "broken.py").write_text("import surely_not_installed\n")
    install(site, "broken-command", COMMANDS, "broken = broken:add\nrun = broken:add")
    text = " ".join(whole_parser().format_help().split())
    assert 'broken (command "broken" (broken:add, from broken-command 1.0) cannot be loaded' in text
    assert "run consume as a member of the group check-config" in text


def test_the_help_names_what_is_not_installed_and_what_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def text() -> str:
        return "".join(whole_parser().format_help().split())  # lines are wrapped

    assert "notinstalled:" not in text()
    entry_points = metadata.entry_points

    def fewer(**selection: str) -> metadata.EntryPoints:
        found: Any = entry_points(**selection)
        return metadata.EntryPoints(each for each in found if each.name in ("config", "sandbox"))

    monkeypatch.setattr(metadata, "entry_points", fewer)
    shown, _, missing = text().partition("notinstalled:")
    verbs = "cluster, completion, consume, context, exporter, groups, lag, manual, offsets, sink, top, topics"
    expected = f"{verbs}: {pip_install('tools')}; demo: {pip_install('sandbox')}Exit status:"
    assert missing.startswith("".join(expected.split()))
    assert "sandbox" in shown
    assert "exporter" not in shown
