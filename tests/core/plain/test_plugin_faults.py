"""Faults of a sink or command are found at the start, as one line that names the plugin and says what to change."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from kzconsumer.cli.main import whole_parser
from kzconsumer.plugins import COMMANDS, SINKS
from tests.support.command_line import kzconsumer
from tests.support.installed_plugins import install

GROUP = """
[zookeeper]
connect = "127.0.0.1:1"
[group]
id = "orders"
[subscription]
topics = { orders = 1 }
"""

GOOD_SINK = """
class Sink:
    def __init__(self, options, context):
        pass
    async def __aenter__(self):
        return self
    async def __aexit__(self, *_):
        pass
    async def write(self, batch):
        pass
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory into which distributions can be installed, with the modules `own_sink` and `own_command`."""
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("own_sink", "own_command"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


SINK_FAULTS = [
    (
        "    async def write(self, batch):",
        "    async def wrote(self, batch):",
        'Sink has no "write"; define "async def ',
    ),
    (
        "    async def write",
        "    def write",
        'Sink has a "write" that is not async; define "async def write(self, batch)"',
    ),
    (
        "write(self, batch)",
        "write(self)",
        'Sink has a "write" that cannot be called as (batch): too many positional arguments; define "async def write(',
    ),
    ("async def __aenter__", "async def enter", 'Sink has no "__aenter__"; define "async def __aenter__(self)"'),
    ("async def __aexit__", "def __aexit__", 'Sink has a "__aexit__" that is not async; define "async def __aexit__('),
    (
        "class Sink:",
        'class Sink:\n    fingerprint = "f"',
        'Sink has a "fingerprint" and no "has"; define "async def has(',
    ),
    ("class Sink:", "class Sink:\n    fingerprint = 7", 'Sink has a "fingerprint" that is not a text: 7'),
    (
        "class Sink:",
        "class Sink:\n    fingerprint = property(lambda self: self._id)",
        'Sink has a "fingerprint" that cannot be read before the sink is entered: AttributeError: ',
    ),
    (
        "class Sink:",
        "class Sink:\n    remembers = True",
        'Sink has "remembers" and no "fingerprint"; set that to a text',
    ),
    ("class Sink:", 'class Sink:\n    wants = "raw"', 'Sink wants "raw"; there is columns, ranges'),
    (
        "class Sink:",
        'class Sink:\n    batch_bytes = "1MiB"',
        "Sink has a \"batch_bytes\" that is not a number of bytes: '1MiB'",
    ),
    ("class Sink:", "class Sink:\n    batch_bytes = 0", 'Sink has a "batch_bytes" that is not a number of bytes: 0'),
    ("class Sink:", "class Sink:\n    due_records = 0", 'Sink has a "due_records" that is not a number of records: 0'),
    ("class Sink:", "class Sink:\n    async def check(self): ...", 'Sink has an async "check", which would never run'),
    (
        "class Sink:",
        "class Sink:\n    def set_aside(self, part, records): ...",
        'Sink has a "set_aside" that is not async',
    ),
]
BUILDER_FAULTS = [
    ("options, context", "options", " cannot be called as (options, context): too many positional arguments"),
    ("class Sink:", "async def make(options, context): ...\nclass Sink:", " is async; it must return the sink"),
    (
        "class Sink:",
        "make = 7\nclass Sink:",
        " is an object of type int, not a class or function (options, context) -> sink",
    ),
    ("class Sink:", "def make(options, context): ...\nclass Sink:", ': NoneType has no "write"; define '),
    ("        pass", "        {}['path']", " failed to check its options: KeyError: 'path' ("),
]


@pytest.mark.parametrize("verb", ["check-config", "--config"])
@pytest.mark.parametrize(
    ("before", "after", "fault"), [*((b, a, f": {fault}") for b, a, fault in SINK_FAULTS), *BUILDER_FAULTS]
)
def test_a_faulty_sink_is_a_line_before_any_server_is_asked(
    site: Path, verb: str, before: str, after: str, fault: str
) -> None:
    assert before in GOOD_SINK
    source = GOOD_SINK.replace(before, after, 1)
    (site / "own_sink.py").write_text(source)
    built = "make" if "make" in source else "Sink"
    install(site, "own-sink", SINKS, f"own = own_sink:{built}")
    file = site / "group.toml"
    file.write_text(f'{GROUP}[sink]\nplugin = "own"\n')
    status, _, errors = kzconsumer(verb, str(file))
    assert status == 78, errors
    (line,) = errors.splitlines()
    begin = f'kzconsumer: {file}:9: [sink] plugin: sink "own" (own_sink:{built}, from own-sink 1.0)'
    assert line.startswith(begin + fault), line


DECORATED = """
import functools

def measured(function):
    @functools.wraps(function)
    def run(*arguments):
        return function(*arguments)
    return run

""" + GOOD_SINK.replace("    async def write", "    remembers = False\n    @measured\n    async def write")


@pytest.mark.parametrize("source", [GOOD_SINK, DECORATED], ids=["plain", "decorated"])
def test_a_sink_without_fault_passes(site: Path, source: str) -> None:
    (site / "own_sink.py").write_text(source)
    install(site, "own-sink", SINKS, "own = own_sink:Sink")
    file = site / "group.toml"
    file.write_text(f'{GROUP}[sink]\nplugin = "own"\n')
    assert kzconsumer("check-config", str(file)) == (0, f"{file}: no fault found\n", "")


def test_the_place_of_an_error_is_in_the_plugin(site: Path) -> None:
    """And not in a library that it calls."""
    (site / "own_sink.py").write_text(
        GOOD_SINK.replace("        pass", "        import json\n        json.loads('')", 1)
    )
    install(site, "own-sink", SINKS, "own = own_sink:Sink")
    file = site / "group.toml"
    file.write_text(f'{GROUP}[sink]\nplugin = "own"\n')
    assert f"({site / 'own_sink.py'}, line 5)\n" in kzconsumer("check-config", str(file))[2]


COMMAND = """
def add_arguments(subparsers):
    parser = subparsers.add_parser("own", help="the group's id")
    parser.set_defaults(run=run)

def run(arguments):
    from kzconsumer.cli import load_settings
    print(load_settings(arguments).group.id)
"""
WITH_CONFIG = COMMAND.replace(
    "    parser.set", "    from kzconsumer.cli import add_config\n    add_config(parser)\n    parser.set"
)


def install_command(site: Path, source: str) -> None:
    (site / "own_command.py").write_text(source)
    install(site, "own-command", COMMANDS, "own = own_command:add_arguments")


def test_a_command_that_returns_nothing_has_succeeded(site: Path) -> None:
    install_command(site, COMMAND)
    file = site / "group.toml"
    file.write_text(GROUP)
    assert kzconsumer("--config", str(file), "own") == (0, "orders\n", "")


@pytest.mark.parametrize("source", [COMMAND, WITH_CONFIG])
def test_settings_of_a_command_have_all_that_the_command_line_says(site: Path, source: str) -> None:
    install_command(site, source)
    file = site / "group.toml"
    file.write_text(GROUP)
    assert kzconsumer("--config", str(file), "--set", "group.id=other", "own") == (0, "other\n", "")
    after = kzconsumer("own", "--config", str(file), "--set", "group.id=other")
    assert after[:2] == ((0, "other\n") if source == WITH_CONFIG else (2, ""))
    both = kzconsumer("--set", "group.id=other", "--config", str(file), "own", "--set", "group.idd=x")
    if source == WITH_CONFIG:
        assert both == (78, "", "kzconsumer: --set group.idd: [group] idd: unknown key; did you mean id?\n")
    status, _, errors = kzconsumer("own")
    program = "kzconsumer own" if source == WITH_CONFIG else "kzconsumer"
    fault = "no configuration file given; give --config FILE"
    assert (status, errors) == (2, f"{program}: error: {fault}; see {program} --help\n")


@pytest.mark.parametrize(
    ("before", "after", "in_help", "fault"),
    [
        (
            'add_parser("own"',
            'add_parser("owned"',
            True,
            ' must add a parser of its own name: subparsers.add_parser("own"); it added "owned"',
        ),
        ('add_parser("own"', 'add_parser("run"', True, " failed to add its parser: "),
        ("    parser.set_defaults(run=run)", "", False, " does not say what to run: parser.set_defaults(run=function)"),
    ],
)
def test_a_faulty_command_is_a_line(site: Path, before: str, after: str, in_help: bool, fault: str) -> None:
    install_command(site, COMMAND.replace(before, after))
    status, output, errors = kzconsumer("own")
    assert (status, output) == (1, "")
    (line,) = errors.splitlines()
    assert line.startswith(f'kzconsumer: command "own" (own_command:add_arguments, from own-command 1.0){fault}')
    text = "".join(whole_parser().format_help().split())  # it has the other verbs all the same
    assert "checkaconfigurationfile" in text
    assert ("".join(f"(own_command:add_arguments, from own-command 1.0){fault}".split()) in text) == in_help
