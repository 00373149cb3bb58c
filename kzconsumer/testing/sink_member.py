"""Member processes for the sink contract, each with a sink, which can be killed or stopped at any moment.

`SinkProcess` is the contract's handle, `_live` the process.
"""

from __future__ import annotations

import contextlib
import faulthandler
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable, Collection, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGSTOP, Signals
from types import FrameType
from typing import Any, Literal, NamedTuple

import anyio
import anyio.to_thread
import msgspec

from kzconsumer.errors import raised, sole_cause
from kzconsumer.model import RangeIdentity
from kzconsumer.sinks.capabilities import Capabilities, capabilities
from kzconsumer.sinks.interface import Batch, RangeData, Sink, Steps

_LEAVE = 20.0
_LAST_LINES = 30  # of a member's standard error, in the message about its end
_SYSTEM = frozenset({"posix", "_io", "_socket", "sqlite3", "fcntl"})
"""C modules through which Python code acts outside its process."""

_processes = multiprocessing.get_context("forkserver")


def import_once(module: str) -> None:
    """Fork members from a process that has imported this module. Only the first call has an effect."""
    _processes.set_forkserver_preload(["kzconsumer.testing.sink_contract", module])


def last_lines(errors: str) -> list[str]:
    """Of a standard error; without the stack in C that ends Python 3.14's report of a fault, which hides the sink's."""
    return [line for line in errors.splitlines() if not line.startswith('  Binary file "')][-_LAST_LINES:]


class MemberFailedError(AssertionError):
    """A member ended by an error of its sink outside `write`, or its process ended."""


class Moment(NamedTuple):
    """A moment of a write: before its n-th system call, before its n-th step is recorded, or after n seconds."""

    kind: Literal["call", "step", "time"]
    at: float


class ContractWrite(NamedTuple):
    """The result of a write: an error, or its length. `calls` are those of the sink's own process."""

    error: str | None
    calls: int = 0
    steps: int = 0
    seconds: float = 0.0


class _Write(NamedTuple):
    batch: Batch
    done: tuple[str, ...]
    moment: Moment | None
    signal: int


class _Aside(NamedTuple):
    part: RangeIdentity
    records: int


class SinkProcess:
    """A process with a sink."""

    def __init__(self, build: Callable[[], Sink], stdout: Path) -> None:
        self._pipe, theirs = _processes.Pipe()
        self._process = _processes.Process(target=_live, args=(build, theirs, stdout), daemon=True)
        self._process.start()
        theirs.close()
        self._record: Callable[[str], bool] = lambda step: False
        self._early: ContractWrite | None = None
        self._errors = _errors_of(stdout, self._process.pid)
        self.alive = True
        self.death = ""
        """How the process ended, if nobody has killed it: its exit status or signal, and what it wrote last."""
        try:
            self.fingerprint: str = self._required()
        except BaseException:
            self.kill()
            raise

    def __repr__(self) -> str:
        return f"Member(pid {self._process.pid})"

    def has(self, ranges: Sequence[RangeIdentity]) -> Collection[RangeIdentity]:
        self._pipe.send(tuple(ranges))
        found: Collection[RangeIdentity] = self._required()
        return found

    def set_aside(self, part: RangeData) -> bool:
        self._pipe.send(_Aside(part.identity, part.records))
        aside: bool = self._required()
        return aside

    def begin(
        self,
        batch: Batch,
        done: tuple[str, ...],
        record: Callable[[str], bool],
        moment: Moment | None = None,
        signal: int = SIGKILL,
    ) -> None:
        """Start writing a batch; the process gets `signal` at `moment`, if the write lasts until then."""
        self._record = record
        self._pipe.send(_Write(batch, done, moment, signal))
        if moment is not None and moment.kind == "time":
            self._early = self._message(time.monotonic() + moment.at)
            if signal == SIGSTOP:
                self.freeze()
            else:
                self.kill()

    def finish(self) -> ContractWrite | None:
        """The result of the write; None if the process died or was stopped in it."""
        early, self._early = self._early, None
        if early is not None or not self.alive:
            return early
        try:
            written: ContractWrite = self._answer()
        except (EOFError, ConnectionError):
            self._died()
            return None
        except _Stopped:
            self.freeze()
            return None
        return written

    def kill(self) -> None:
        """Send SIGKILL; return when the process and its descendants are gone."""
        if self.alive:
            self.alive = False
            started = started_by(self._process.pid)
            self._process.kill()
            self._process.join()
            self._pipe.close()
            wait_gone(started)
            sys.stderr.write(self._written_errors())  # to pytest, which shows it if the test fails

    def freeze(self) -> None:
        for pid in (self._process.pid, *started_by(self._process.pid)):
            send_signal(pid, SIGSTOP)

    def thaw(self, record: Callable[[str], bool]) -> None:
        self._record = record
        for pid in (self._process.pid, *started_by(self._process.pid)):
            send_signal(pid, SIGCONT)

    def close(self) -> None:
        """Close the sink, and end the process."""
        if self.alive:
            self.thaw(lambda step: False)
            with contextlib.suppress(OSError):
                self._pipe.send(None)
            self._process.join(_LEAVE)
            self.kill()

    def _required(self) -> Any:
        """The answer. Raises MemberFailedError if the process ends instead."""
        try:
            return self._answer()
        except (EOFError, ConnectionError):
            self._died()
            raise MemberFailedError(f"{self} ended: {self.death}") from None

    def _died(self) -> None:
        """The process has closed its pipe."""
        self._process.join(_LEAVE)
        status = self._process.exitcode
        if status is None:
            how = "it closed its pipe, and goes on"
        else:
            how = f"signal {Signals(-status).name}" if status < 0 else f"exit status {status}"
        lines = last_lines(self._written_errors())
        self.death = "\n".join([how, *(["its standard error ends with:", *lines] if lines else [])])
        self.kill()

    def _written_errors(self) -> str:
        with contextlib.suppress(FileNotFoundError):
            return self._errors.read_text(errors="replace")
        return ""

    def _answer(self) -> Any:
        deadline = time.monotonic() + LIMIT
        while time.monotonic() < deadline:
            if (answer := self._message(time.monotonic() + LOOK)) is not None:
                return answer
            if state(self._process.pid) == "T":
                raise _Stopped
        raise TimeoutError(f"{self} has not answered within {LIMIT:.0f} s")

    def _message(self, until: float) -> Any:
        """The answer, or None; steps are recorded meanwhile."""
        while self._pipe.poll(max(0.0, until - time.monotonic())):
            kind, content = self._pipe.recv()
            if kind == "answer":
                return content
            if kind == "error":
                self.kill()
                raise MemberFailedError(content)
            self._pipe.send(self._record(content))
        return None


class _Stopped(Exception):
    """The process is stopped, as requested."""


def _errors_of(stdout: Path, pid: int | None) -> Path:
    """Where a member's standard error goes."""
    return stdout.with_name(f"stderr-{pid}")


def _live(build: Callable[[], Sink], pipe: Connection, stdout: Path) -> None:
    for descriptor, file in ((1, stdout), (2, _errors_of(stdout, os.getpid()))):
        output = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(output, descriptor)
        os.close(output)
    faulthandler.enable()  # a crash in C leaves the Python lines that led to it
    fate = _Fate()
    threading.setprofile(fate.look)
    sys.setprofile(fate.look)
    try:
        anyio.run(_serve, build, pipe, fate)
    except Exception as error:
        pipe.send(("error", raised(sole_cause(error) if isinstance(error, BaseExceptionGroup) else error)))


async def _serve(build: Callable[[], Sink], pipe: Connection, fate: _Fate) -> None:
    built = build()
    can = capabilities(built)
    async with built as sink:
        pipe.send(("answer", can.destination.fingerprint if can.destination is not None else ""))
        while (asked := await anyio.to_thread.run_sync(pipe.recv)) is not None:
            if isinstance(asked, _Write):
                answer: object = await _write(sink, can, asked, pipe, fate)
            elif isinstance(asked, _Aside):
                assert can.set_aside is not None, "a replayable sink needs set_aside for this"
                answer = await can.set_aside(*asked)
            else:
                assert can.destination is not None
                answer = list(await can.destination.has(asked))
            pipe.send(("answer", answer))


async def _write(sink: Sink, can: Capabilities, asked: _Write, pipe: Connection, fate: _Fate) -> ContractWrite:
    recorded = 0

    async def record(step: str) -> bool:
        nonlocal recorded
        recorded += 1
        fate.reached(Moment("step", recorded))
        pipe.send(("step", step))
        kept: bool = await anyio.to_thread.run_sync(pipe.recv)
        return kept

    steps = Steps(asked.done, record) if can.destination is not None else None
    batch = msgspec.structs.replace(asked.batch, steps=steps)
    began = time.monotonic()
    fate.begin(asked.moment, asked.signal)
    try:
        await sink.write(batch)
    except Exception as error:
        return ContractWrite(raised(error))
    finally:
        fate.end()
    return ContractWrite(None, fate.calls, recorded, time.monotonic() - began)


class _Fate:
    """Counts the system calls of a write, in any thread, and sends the signal at the chosen one."""

    def __init__(self) -> None:
        self.calls = 0
        self._writing = False
        self._moment: Moment | None = None
        self._signal = 0

    def begin(self, moment: Moment | None, signal: int) -> None:
        self.calls, self._moment, self._signal, self._writing = 0, moment, signal, True

    def end(self) -> None:
        self._writing = False

    def look(self, frame: FrameType, event: str, called: object) -> None:
        if self._writing and event == "c_call" and _module_of(called) in _SYSTEM:
            self.calls += 1
            self.reached(Moment("call", self.calls))

    def reached(self, moment: Moment) -> None:
        if moment == self._moment:
            os.kill(os.getpid(), self._signal)


def _module_of(called: object) -> str:
    module: str | None = getattr(called, "__module__", None)
    return module or type(getattr(called, "__self__", None)).__module__


# Processes of this machine, read from /proc: state, descendants, end.

LIMIT = 400.0
"""Seconds that no single step exceeds: starting Spark on a busy machine is the slowest."""
LOOK = 0.01
"""Seconds between two looks."""


def state(pid: int | None) -> str:
    """The letter of proc(5), such as T for stopped; empty when there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


def started_by(pid: int | None) -> list[int]:
    """All running descendants of a process."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                status, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            except (OSError, ValueError):
                continue
            if status not in "ZX":
                parents[int(entry.name)] = int(parent)
    found: list[int] = []
    wanted = {pid or 0}
    while wanted:
        wanted = {child for child, parent in parents.items() if parent in wanted}
        found += wanted
    return found


def wait_gone(pids: Collection[int]) -> None:
    """Wait until these processes are gone, after SIGCONT to stopped ones. Raises TimeoutError after LIMIT."""
    deadline = time.monotonic() + LIMIT
    for pid in pids:
        send_signal(pid, SIGCONT)
    while any(state(pid) not in ("", "Z", "X") for pid in pids):
        if time.monotonic() > deadline:
            raise TimeoutError("processes that a killed member had started still run")
        time.sleep(LOOK)


def send_signal(pid: int | None, number: int) -> None:
    try:
        if pid is not None:
            os.kill(pid, number)
    except ProcessLookupError:
        pass
