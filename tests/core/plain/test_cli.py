"""The command: exit statuses, one line for each fault, and never a traceback for a user's mistake."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest

from kzconsumer import __version__
from kzconsumer.cli.main import FEWEST_OPEN_FILES, report_error, whole_parser
from kzconsumer.errors import ConfigError, ConnectionLostError, SinkError
from kzconsumer.settings.settings import Settings
from kzconsumer.sinks.capabilities import check_sink
from kzconsumer.sinks.interface import Sink
from tests.support.command_line import GOOD, kzconsumer, kzconsumer_process


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "group.toml"


@pytest.mark.parametrize("terminal", [False, True])
def test_a_reload_before_the_daemon_runs_does_not_end_it(
    file: Path, terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The daemon gets it. At a terminal the signal says that the terminal is gone, as for every program."""
    noted: list[int] = []
    at_first = signal.signal(signal.SIGHUP, lambda number, frame: noted.append(number))  # without it, this process ends
    before = signal.getsignal(signal.SIGHUP)

    def look(settings: Settings) -> Sink:
        noted.append(signal.getsignal(signal.SIGHUP) is not before)
        if noted[0]:
            signal.raise_signal(signal.SIGHUP)
        return check_sink(settings)

    def run(settings: Settings, load: object, show: object, early: list[int]) -> int:
        noted.append(len(early))
        return 0

    monkeypatch.setattr("kzconsumer.sinks.capabilities.look_at_sink", look)
    monkeypatch.setattr("kzconsumer.service.daemon.run", run)
    monkeypatch.setattr("kzconsumer.cli.verbs._ended", int)  # a thread of an earlier test would end this process
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: terminal))
    file.write_text(GOOD)
    try:
        assert kzconsumer("run", str(file)).status == 0
        assert signal.getsignal(signal.SIGHUP) is before
    finally:
        signal.signal(signal.SIGHUP, at_first)
    assert noted == ([False, 0] if terminal else [True, 1])


def test_without_a_word_the_help_is_printed() -> None:
    done = kzconsumer()
    assert (done.status, done.out) == (2, "")
    assert done.err == kzconsumer("--help").out
    assert "\nverbs:\n  run " in done.err


def test_ctrl_c_while_the_command_is_imported_has_no_traceback() -> None:
    interrupted = """
import sys
from kzconsumer.cli.main import main
class Interrupt:
    def find_spec(name, *_):
        if name == "msgspec":  # most of a start is its import, and what it imports
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupt)
sys.exit(main(["plugins"]))
"""
    done = subprocess.run([sys.executable, "-c", interrupted], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.parametrize(
    ("words", "near"),
    [(("groups", "lst"), "list"), (("sandbox", "xyz"), None), (("groups", "list", "-o", "jsn"), "json")],
)
def test_a_mistyped_word_is_one_line_with_the_nearest_one(words: tuple[str, ...], near: str | None) -> None:
    done = kzconsumer(*words)
    assert done.status == 2
    (line,) = done.err.splitlines()
    assert line.startswith(f"kzconsumer {words[0]}")
    assert ("did you mean" in line) is (near is not None)
    if near is not None:
        assert f"; did you mean '{near}'; see kzconsumer {words[0]}" in line


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            "lag g --json",
            "kzconsumer lag: error: unrecognized arguments: --json; did you mean -o json; see kzconsumer lag",
        ),
        (
            "groups list --jsonl x",
            "kzconsumer groups list: error: unrecognized arguments: --jsonl x; did you mean -o jsonl",
        ),
        (
            "run a.toml --sett=a.b=1",
            "kzconsumer run: error: unrecognized arguments: --sett=a.b=1; did you mean --set; see",
        ),
        (
            "check-config a b",
            "kzconsumer check-config: error: unrecognized arguments: b; see kzconsumer check-config --help",
        ),
        (
            "lag --group g",
            "kzconsumer lag: error: unrecognized arguments: --group; GROUP is given without --group; see",
        ),
        ("lag --groups g", "kzconsumer lag: error: unrecognized arguments: --groups; see"),
        ("--x lag g", "kzconsumer lag: error: unrecognized arguments: --x; see"),
        (
            "offsets reset g --all-topics --to-latests",
            "kzconsumer offsets reset: error: unrecognized arguments: --to-latests; did you mean --to-latest; see",
        ),
    ],
)
def test_an_option_that_there_is_not_names_the_verb_and_the_nearest_option(words: str, line: str) -> None:
    done = kzconsumer(*words.split())
    assert (done.status, done.out) == (2, "")
    assert done.err.startswith(line)


@pytest.mark.parametrize(
    ("words", "output"),
    [
        (["run"], "no configuration file given"),
        (["offsets", "reset", "g", "--all"], "error: one of the arguments --to-earliest "),
        (["offsets", "reset", "g", "--shift-by", "x"], "'x' is not a number of offsets such as 100 or -100"),
        (["check-config"], "no configuration file given"),
        (["run", "a.toml", "--config", "b.toml"], "not allowed with argument FILE"),
        (["orders.toml"], "orders.toml is not a command; `kzconsumer run orders.toml` runs it"),
        (["consume-all"], 'did you mean "consume"?'),
        (["check-confg"], 'did you mean "check-config"? installed are '),
        (["sandbox", "up", "--brokers", "0"], "argument --brokers: '0' is not a whole number, at least 1"),
        (["sandbox", "up", "--brokers", "two"], "argument --brokers: 'two' is not a whole number"),
        (["sandbox", "topic"], "TOPIC"),
        (["sandbox", "topic", "a/b"], "argument TOPIC: 'a/b' is not a topic name"),
        (["sandbox", "topic", "a", "--partitions", "-1"], "'-1' is not a whole number, at least 1"),
        (["sandbox", "topic", "a", "--config", "x=1", "y"], "argument --config: 'y' is not NAME=VALUE"),
        (["completion", "tcsh"], "'tcsh' has no completion script; these have one: bash, zsh, fish; see"),
        (
            ["offsets", "export", "g", "-o", "json"],
            "argument -o: --format is that of the file; `kzconsumer offsets show",
        ),
        (["lag", "g", "--bootstrap", "a:1,b"], "argument --bootstrap: 'b' is not a host and a port such as"),
        (["exporter", "--cluster", ""], "argument --cluster: '' is not a name for paths such as /v3/kafka/NAME"),
        (["exporter", "--listen", "0.0.0.0"], "argument --listen: '0.0.0.0' is not an address such as"),
        (
            ["exporter", "--zookeeper", "localhost:1", "--listen", "0.0.0.0:9309"],
            "error: --listen 0.0.0.0:9309 is open to other machines; give --token-file FILE; see",
        ),
        (["consume", "t", "--group", "-dash"], "expected one argument; give it as --group=-dash; see"),
        (["consume", "t", "--group", "-c", "3"], "argument --group: expected one argument; see"),
        (["--conf", "x"], 'no command "x" is installed'),
    ],
)
def test_wrong_usage_is_exit_status_2(words: list[str], output: str) -> None:
    done = kzconsumer(*words)
    assert done.status == 2
    assert output in done.err
    assert "Traceback" not in done.err


def test_plugins_lists_what_is_installed() -> None:
    done = kzconsumer("plugins")
    assert done.status == 0
    lines = done.out.splitlines()
    assert lines[0] == f"kzconsumer {__version__}"
    assert ["assignor", "range", "kzconsumer.assignors:assign_range"] in [line.split() for line in lines]
    assert max(map(len, lines)) <= 80


def test_a_reader_that_closes_the_pipe_is_not_an_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    words = [sys.executable, "-m", "kzconsumer", "plugins"]
    done = subprocess.run(words, stdout=writing, stderr=subprocess.PIPE, text=True, check=False, timeout=60)
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, "")


def test_version() -> None:
    done = kzconsumer_process("--version")
    assert (done.status, done.err) == (0, "")
    assert done.out.startswith("kzconsumer 0.")


def test_help_imports_nothing_heavy() -> None:
    heavy = ["aiozk", "anyio", "asyncio", "http.client", "numpy", "pyarrow", "pyspark", "ssl", "structlog"]
    program = (
        "import sys; from kzconsumer.cli.main import main\n"
        "try: main(['--help'])\n"
        f"finally: print([name for name in {heavy} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (0, "[]")
    assert "check-config" in done.stdout


def test_help_looks_at_the_installed_distributions_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """There may be hundreds, and a dozen commands."""
    looks = []

    def counted(*, group: str) -> metadata.EntryPoints:
        looks.append(group)
        return found(group=group)

    found = metadata.entry_points
    monkeypatch.setattr(metadata, "entry_points", counted)
    assert len(whole_parser().format_help()) > 1000
    assert len(looks) == 1


def test_errors_of_a_task_group_are_reported_one_by_one(capsys: pytest.CaptureFixture[str]) -> None:
    group = ExceptionGroup(
        "tasks", [SinkError("disk full\nreally"), ExceptionGroup("inner", [ConnectionLostError("gone")])]
    )
    assert report_error(group) == 1
    assert capsys.readouterr().err == "kzconsumer: disk full really\nkzconsumer: gone\n"


def test_a_fault_of_the_configuration_decides_the_exit_status(capsys: pytest.CaptureFixture[str]) -> None:
    assert report_error(ExceptionGroup("tasks", [ConnectionLostError("gone"), ConfigError(["a", "b"])])) == 78
    assert capsys.readouterr().err == "kzconsumer: gone\nkzconsumer: a\nkzconsumer: b\n"


def test_an_internal_error_keeps_its_traceback() -> None:
    group = ExceptionGroup("tasks", [ConnectionLostError("gone"), KeyError("x")])
    with pytest.raises(ExceptionGroup) as caught:
        report_error(group)
    assert caught.value is group


def test_a_limit_of_open_files_that_is_too_low_is_named(file: Path) -> None:
    """Before an import fails because of it, at any place."""
    file.write_text(GOOD)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (FEWEST_OPEN_FILES - 1, limits[1]))
    try:
        done = kzconsumer("check-config", str(file))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert (done.status, done.out) == (78, "")
    assert done.err.startswith("kzconsumer: this process may open 63 files and connections, which is too few: at ")
