"""`kzconsumer top` on a terminal of 80 columns with real status servers; and its drawing alone."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import re
import signal
import socket
import struct
import subprocess
import sys
import termios
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import pytest
from rich.console import Console

from kzconsumer.settings.settings import Settings
from kzconsumer.status.status_server import serving
from kzconsumer_tools.exporter.group_feed import GroupFeed
from kzconsumer_tools.tables.top_screen import View, picture
from kzconsumer_tools.top_feed import Address, DaemonFeed, events, read_address
from tests.core.plain.test_status_server import observer

COLUMNS, LINES = 80, 24
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """A program on a terminal, and all its output."""

    def __init__(self, *words: str) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
        os.set_blocking(self._ours, False)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "kzconsumer", *words],
            stdin=theirs, stdout=theirs, stderr=theirs, env={**os.environ, "TERM": "xterm-256color", "COLUMNS": ""},
        )  # fmt: skip
        os.close(theirs)
        self._written = b""

    def picture(self) -> list[str]:
        """The lines of the last screen."""
        with suppress(BlockingIOError, OSError):
            while part := os.read(self._ours, 65536):
                self._written += part
        last = self._written.decode("utf-8", "replace").split("\x1b[H")[-1]
        return [line.rstrip() for line in _ESCAPES.sub("", last).splitlines()]

    async def shows(self, *texts: str) -> list[str]:
        with anyio.fail_after(60):
            while not all(text in "\n".join(self.picture()) for text in texts):
                assert self.process.poll() is None, self.picture()
                await anyio.sleep(0.05)
        return self.picture()

    def press(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    async def ended(self) -> int:
        with anyio.fail_after(30):
            while (status := self.process.poll()) is None:
                self.picture()
                await anyio.sleep(0.02)
        return status

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._ours)


@contextmanager
def terminal(*words: str) -> Iterator[Terminal]:
    opened = Terminal(*words)
    try:
        yield opened
    finally:
        opened.close()


async def test_daemons_that_start_and_stop(tmp_path: Path) -> None:
    """One runs, one requires its token, one starts, stops and is shown as gone since then; Ctrl-C ends it cleanly."""
    token, file = tmp_path / "token", tmp_path / "group.toml"
    token.write_text("sesame\n")
    file.write_text(
        '[zookeeper]\nconnect = "zk1:2181"\n[group]\nid = "orders"\n'
        f'[status]\nlisten = "unix:{tmp_path}/c"\ntoken_file = "{token}"\n'
    )
    guarded = observer(f"unix:{tmp_path}/c", token_file=str(token))
    async with serving(observer(f"unix:{tmp_path}/a")), serving(guarded):
        with terminal("top", f"{tmp_path}/a", f"unix:{tmp_path}/b", f"{tmp_path}/c", "--group-file", str(file)) as top:
            async with serving(observer(f"unix:{tmp_path}/b")):
                lines = await top.shows("3 of 4 reached", "it requires a token")
                assert "\n".join(lines).count("waiting for ZooKeeper and a broker") == 3
                assert max(map(len, lines)) <= COLUMNS
                assert len(lines) <= LINES
            lines = await top.shows("2 of 4 reached")
            assert re.search(r"not reachable since [\d-]+T[\d:]+Z: (it has stopped|No such file)", "\n".join(lines)), (
                lines
            )
            async with serving(observer(f"unix:{tmp_path}/b")):
                await top.shows("3 of 4 reached")
                top.process.send_signal(signal.SIGINT)
                assert await top.ended() == 0
    assert "Traceback" not in "\n".join(top.picture())


def once(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kzconsumer", "top", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


async def test_a_single_screen(tmp_path: Path) -> None:
    async with serving(observer(f"unix:{tmp_path}/a")):
        done = await asyncio.to_thread(once, f"{tmp_path}/a", "--once")
    assert done.returncode == 3, "it has not joined"
    assert done.stdout.startswith("1 of 1 reached")
    gone = await asyncio.to_thread(once, f"{tmp_path}/a")
    assert gone.returncode == 3
    assert gone.stdout.startswith("0 of 1 reached\n"), "lag and stalled partitions are unknown"
    assert "No such file or directory" in gone.stdout
    refused = await asyncio.to_thread(once, "127.0.0.1:1")
    assert re.search(r": refused: check \[status\] listen$", refused.stdout.strip()), refused.stdout


@pytest.mark.parametrize(
    ("words", "status", "line"),
    [
        ([], 2, "give ADDRESS or --group-file FILE"),
        (["--of", "g", "--group", "--zookeeper", "zk"], 2, "--group is of daemons; --of GROUP shows every partition"),
        (["--of", "g", "--token-file", "t", "--zookeeper", "zk"], 2, "--token-file is of the daemons at ADDRESS"),
        (["localhost:1", "--zookeeper", "zk"], 2, "name the cluster of --of GROUP; give it too"),
        (["nowhere"], 78, 'or "unix:/run/kzconsumer/status.sock"; a group is shown with --of GROUP\n'),
        (
            ["localhost:1", "--token-file", "/nowhere/x"],
            78,
            "kzconsumer: --token-file: cannot be read: No such file or directory",
        ),
    ],
)
def test_wrong_usage(words: list[str], status: int, line: str) -> None:
    done = once(*words)
    assert (done.returncode, line in done.stderr) == (status, True), done.stderr


def test_addresses() -> None:
    assert read_address("http://127.0.0.1:9308") == read_address("127.0.0.1:9308") == "127.0.0.1:9308"
    assert read_address("/run/s") == read_address("unix:/run/s") == "unix:/run/s"


async def test_a_group_of_a_zookeeper_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes connections, as one that is suspended."""
    monkeypatch.setattr("kzconsumer_tools.exporter.group_feed.LIMIT", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as server:
        connect = f"127.0.0.1:{server.getsockname()[1]}"
        found = GroupFeed(Settings.from_dict({"zookeeper": {"connect": connect}, "group": {"id": "unused"}}), "orders")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(found.run)
            with anyio.fail_after(20):
                await found.answered.wait()
            tasks.cancel_scope.cancel()
    assert found.lost is not None
    assert found.reason.startswith(f"{connect}: ")
    assert not found.healthy


async def test_an_address_of_something_else_says_so() -> None:
    """As the port of a ZooKeeper or of a broker, which close the connection without an answer."""
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    found = DaemonFeed(Address(f"127.0.0.1:{server.sockets[0].getsockname()[1]}"))
    async with server, anyio.create_task_group() as tasks:
        tasks.start_soon(found.run)
        with anyio.fail_after(20):
            await found.answered.wait()
        tasks.cancel_scope.cancel()
    assert found.reason.startswith("no status served there: ")


async def test_events_are_parsed_however_they_are_split() -> None:
    text = b'event: status\ndata: {"a": "b: c"}\n\n:\n\nevent: members\ndata: []\n\n'
    for size in (1, 7, len(text)):

        class Content:
            async def iter_any(self, size: int = size) -> AsyncIterator[bytes]:
                for place in range(0, len(text), size):
                    yield text[place : place + size]

        content: Any = Content()
        assert [each async for each in events(content)] == [("status", {"a": "b: c"}), ("members", [])]


def feed(**status: object) -> DaemonFeed:
    found = DaemonFeed(Address("127.0.0.1:9308"))
    known = {"group": "orders", "ready": True, "alive": True, "reason": None, "owned": 3, "members": 2, "lag": 1204,
             "lag_text": "1,204", "lag_seconds_text": "1 min 15 s", "total": {"at_least": 1204, "unknown": {}},
             "rate": 4512.3, "stalled": 1, "health": "unhealthy", "findings": [], "not_asked": []}  # fmt: skip
    found.documents["status"] = known | status
    found.documents["partitions"] = {
        "owned": [
            partition("a", 0, "behind", 4),
            partition("a\x1b]0;taken\x07", 1, "unknown", None, rate=None),
            partition("t" * 249, 2, "stalled", 9, standing=192.0, hindrance="sink slow"),
        ]
    }
    return found


def partition(
    topic: str, number: int, state: str = "caught up", lag: int | None = 0, at_least: int = 0, **fields: object
) -> dict[str, object]:
    why = {"reason": "no leader"} if lag is None else None
    progress = {"lag": lag, "at_least": lag or at_least, "seconds": 0.5, "why": why}
    usual = {"rate": 3.0, "eta": None, "standing": 0.0, "hindrance": None, "state": state, "progress": progress}
    return {"topic": topic, "partition": number} | usual | fields


def drawn(daemons: list[DaemonFeed], height: int = LINES, width: int = COLUMNS) -> list[str]:
    console = Console(width=width, force_terminal=True, color_system=None, legacy_windows=False)
    with console.capture() as capture:
        console.print(picture(daemons, height, width))
    return capture.get().splitlines()


def test_the_worst_come_first_and_names_cannot_move_the_cursor() -> None:
    lines = drawn([feed()])
    assert "\x1b" not in "".join(lines)
    assert "\x07" not in "".join(lines)
    assert max(map(len, lines)) <= COLUMNS
    assert "lag 1,204  behind by 1 min 15 s" in lines[3]
    assert [line[2:4] for line in lines[5:]] == ["tt", "a\\", "a-"]
    assert "ttt-2 stalled sink slow, 3 min 12 s " in lines[5]
    assert "unknown no leader" in lines[6]
    assert not feed().healthy
    assert not feed(health="not examined").healthy
    assert feed(health="healthy").healthy


def test_an_unhealthy_daemon_comes_first_with_its_findings() -> None:
    """One a line, and what could not be asked after them."""
    findings = [{"text": "commits fail: \x1b no coordinator"}, {"text": "1 partition stalled: a-1 (sink slow)"}]
    unhealthy = feed(group="later", findings=findings, not_asked=["lag unknown: no leader"])
    lines = drawn([feed(health="healthy"), unhealthy])
    assert lines[2] == "later  127.0.0.1:9308  unhealthy"
    assert lines[3:6] == [
        "  commits fail: \\x1b no coordinator",
        "  1 partition stalled: a-1 (sink slow)",
        "  lag unknown: no leader",
    ]
    assert "orders  127.0.0.1:9308  healthy" in lines


def test_a_long_reason_is_wrapped_and_counted() -> None:
    """Why it is not reached is what it says last."""
    lost = GroupFeed(Settings.from_dict({"zookeeper": {"connect": "zk1:2181"}, "group": {"id": "unused"}}), "billing")
    lost.lost, lost.reason = 0.0, "zk1:2181: ZooKeeper did not answer within 15 s (zk1:2181: no answer within 2 s)"
    assert [line.rstrip() for line in drawn([lost])] == [
        "0 of 1 reached",
        "",
        "billing  zk1:2181",
        "  not reachable since 1970-01-01T00:00:00Z: zk1:2181: ZooKeeper did not answer",
        "    within 15 s (zk1:2181: no answer within 2 s)",
    ]
    found = feed(findings=[{"text": "some words " * 40}])
    found.documents["partitions"]["owned"] = [partition("a", n) for n in range(90)]
    assert len(drawn([found])) == LINES - 1


def test_the_sum_over_daemons_says_what_is_unknown() -> None:
    cut_off = feed(total={"at_least": 7, "unknown": {"no leader": 2}})
    assert "lag at least 1,211 (2 unknown)" in drawn([feed(), cut_off])[0]
    assert "lag unknown (2 unknown)" in drawn([feed(total={"at_least": 0, "unknown": {"no leader": 2}})])[0]
    assert "lag 2,408 " in drawn([feed(), feed()])[0]


def test_unknown_figures_fit_into_a_line_and_long_ones_are_broken_between_two() -> None:
    unknown: dict[str, object] = {
        "total": {"at_least": 1204, "unknown": {"no leader": 2, "never committed": 1}},
        "rate": None,
    }
    unknown["lag_text"] = "at least 1,204 (3 unknown: 2 no leader, 1 never committed)"
    unknown["lag_seconds_text"] = "at least 1 min 15 s"
    lines = drawn([feed(**unknown)])
    assert lines[3] == "  3 partitions  2 members  lag >= 1,204  behind by >= 1 min 15 s  -  stalled 1"
    assert len(lines[3]) <= COLUMNS
    assert "lag unknown " in drawn([feed(**unknown | {"total": {"at_least": 0, "unknown": {"no leader": 3}}})])[3]
    long = feed(owned=12_345, members=1_234, lag_text="123,456,789", rate=123_456.0)
    lines = drawn([long])
    assert lines[3:5] == [
        "  12,345 partitions  1,234 members  lag 123,456,789  behind by 1 min 15 s",
        "  123,456/s  stalled 1",
    ]
    long.documents["partitions"]["owned"] = [partition("a", n) for n in range(90)]
    long.documents["status"]["findings"] = [{"text": "commits fail"}]
    assert len(drawn([long])) == LINES - 1


def test_what_does_not_fit_is_counted_and_names_use_the_width() -> None:
    found = feed()
    found.documents["partitions"]["owned"] = [partition("a" * 100, n) for n in range(90)]
    lines = drawn([found], height=20)
    assert len(lines) <= 20
    assert lines[-1] == f"  and {90 - len(lines[5:-1])} partitions more, none of them worse"
    wide = Console(width=200, force_terminal=True, color_system=None, legacy_windows=False)
    with wide.capture() as capture:
        wide.print(picture([found], 20, 200))
    assert "a" * 100 + "-0" in capture.get()


def test_partitions_are_sorted_by_state_lag_and_name() -> None:
    found = feed()
    found.documents["partitions"]["owned"] = [
        partition("b", 0, "behind", 5),
        partition("a", 10, "behind", 5),
        partition("a", 9, "behind", 5),
        partition("c", 0, "unknown", None, 4),
        partition("d", 0, "stalled", 1, standing=1.0, hindrance="no leader"),
    ]
    lines = drawn([found])[5:]
    assert [line.split()[0] for line in lines] == ["d-0", "c-0", "a-9", "a-10", "b-0"]
    assert ">= 4" in lines[1]


def test_an_unknown_time_left_is_empty() -> None:
    found = feed()
    found.documents["partitions"]["owned"] = [partition("a", 0), partition("a", 1, eta=0.0)]
    assert [line.split()[-1] for line in drawn([found])[5:]] == ["3/s", "s"]


def test_a_narrow_screen_has_the_state_and_whole_numbers() -> None:
    found = feed()
    found.documents["partitions"]["owned"] = [partition("orders", 0, "stalled", 123_456_789, hindrance="sink slow")]
    _, *_, head, row = drawn([found], width=60)
    assert head.split() == ["PARTITION", "STATE", "LAG", "BEHIND"]
    assert row.startswith("  orders-0  stalled sink slow,")
    assert row.split()[-3:] == ["123,456,789", "500", "ms"]
    assert len(row) <= 60


def test_the_whole_group() -> None:
    found = feed()
    found.documents["group"] = {
        "partitions": [
            {"topic": "a", "partition": 0, "owner": "o_m-0", "committed": 7, "end": 1211, "lag": 1204, "rate": 2.5},
            {"topic": "a", "partition": 1, "owner": None, "committed": None, "end": None, "lag": None, "rate": None},
        ]
    }
    lines = drawn([found])
    assert lines[4].split() == ["PARTITION", "OWNER", "COMMITTED", "LOG", "END", "LAG", "RATE"]
    assert lines[5].split() == ["a-1", "-", "-", "-", "-", "-"]
    assert lines[6].split() == ["a-0", "o_m-0", "7", "1211", "1,204", "2.5/s"]


def test_names_of_the_group_use_the_width() -> None:
    thread = "billing_host-of-a-cluster.example.org-1795774274978-10d22af5-0"
    row = {"topic": "a" * 50, "partition": 0, "owner": thread, "committed": 7, "end": 7, "lag": 0, "rate": None}
    found = feed()
    found.documents["group"] = {"partitions": [row]}
    wide = Console(width=200, force_terminal=True, color_system=None, legacy_windows=False)
    with wide.capture() as capture:
        wide.print(picture([found], LINES, 200))
    assert f"{'a' * 50}-0 {thread} " in capture.get()
    assert thread not in "".join(drawn([found]))


def test_rows_that_do_not_fit_are_left_out() -> None:
    for number in (1, 2, 5, 9):
        assert len(drawn([feed()] * number)) <= LINES


def partitions_shown(lines: list[str]) -> list[str]:
    return [line.split()[0] for line in lines if re.match(r"  a-\d", line)]


def screen(found: DaemonFeed, view: View) -> list[str]:
    console = Console(width=COLUMNS, force_terminal=True, color_system=None, legacy_windows=False)
    with console.capture() as capture:
        console.print(picture([found], LINES, COLUMNS, view))
    return capture.get().splitlines()


def test_keys_find_and_scroll() -> None:
    """What people try: q, /, arrows, page keys, and Esc."""
    found, view = feed(), View()
    found.documents["partitions"]["owned"] = [partition("a", n, "behind", 90 - n) for n in range(90)]
    first = partitions_shown(screen(found, view))
    assert first[0] == "a-0"
    assert len(screen(found, view)) <= LINES
    view.press("\x1b[B\x1b[Bj")
    assert partitions_shown(screen(found, view))[0] == "a-3"
    view.press("\x1b[6~ ")
    assert partitions_shown(screen(found, view))[0] == "a-23"
    view.press(" " * 50)
    assert partitions_shown(screen(found, view))[-1] == "a-89", "not beyond the last"
    view.press("k")
    assert partitions_shown(screen(found, view))[-1] == "a-88"
    view.press("/A-7x\x7f")
    assert partitions_shown(screen(found, view)) == ["a-7", *(f"a-{n}" for n in range(70, 80))][: len(first)]
    assert screen(found, view)[-1].startswith("find: A-7_")
    view.press("\rq")
    assert view.ended
    assert screen(found, view)[-1].startswith("named A-7  q quit")
    other = View()
    other.press("/zq")
    assert (other.named, other.ended) == ("zq", False)
    other.press("\x1b")
    assert (other.named, other.typing, other.ended) == ("", False, False)
    other.press("\x1b")
    assert other.ended


async def test_q_ends_it(tmp_path: Path) -> None:
    async with serving(observer(f"unix:{tmp_path}/a")):
        with terminal("top", f"{tmp_path}/a") as top:
            await top.shows("1 of 1 reached", "q quit")
            top.press("q")
            assert await top.ended() == 0
    assert "Traceback" not in "\n".join(top.picture())
