"""The exit status of `kzconsumer run`, and what is logged of a failure. The daemon itself is simulated elsewhere."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from kzconsumer.errors import (
    AlreadyRunningError,
    ConfigError,
    KzConsumerError,
    NotPermittedError,
    PluginError,
    SinkError,
)
from kzconsumer.service import daemon
from kzconsumer.settings.settings import Settings

SETTINGS = Settings.from_dict({"zookeeper": {"connect": "zk"}, "group": {"id": "g"}}, source="g.toml")


def run(monkeypatch: pytest.MonkeyPatch, outcome: int | Exception, seen: list[Any]) -> int:
    """With a daemon that ends so; `seen` gets what it was started with, and `finished`."""

    def started(*arguments: Any, **more: Any) -> int:
        seen.append((arguments, more))
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    monkeypatch.setattr(anyio, "run", started)
    monkeypatch.setattr(daemon, "finish", lambda: seen.append("finished"))
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    return daemon.run(SETTINGS, lambda: SETTINGS, None, (1,))


@pytest.mark.parametrize("status", [0, 1, daemon.EXIT_UNFINISHED])
def test_the_status_is_the_daemons(monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    seen: list[Any] = []
    assert run(monkeypatch, status, seen) == status
    ((function, settings, load, manager, show, early), _), finished = seen
    assert (function, settings, load(), show, early) == (daemon.run_daemons, SETTINGS, SETTINGS, None, (1,))
    assert (manager.listens, finished) == (False, "finished")


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (ConfigError(["a fault"]), ConfigError(["a fault"])),
        (PluginError("a plugin"), PluginError("a plugin")),
        (AlreadyRunningError("another"), AlreadyRunningError("another")),
        (NotPermittedError("/a"), ConfigError([f"g.toml: [zookeeper]: {NotPermittedError('/a')}"])),
        (ZeroDivisionError("a bug"), ZeroDivisionError("a bug")),
    ],
)
def test_faults_of_the_configuration_are_raised(
    monkeypatch: pytest.MonkeyPatch, error: Exception, raised: Exception
) -> None:
    seen: list[Any] = []
    with pytest.raises(type(raised)) as caught:
        run(monkeypatch, error, seen)
    assert str(caught.value) == str(raised)
    assert seen[-1] == "finished"


def test_any_other_failure_is_logged_with_those_that_it_hides(monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[tuple[str, str, dict[str, Any]]] = []

    class Log:
        def __getattr__(self, level: str) -> Any:
            return lambda event, **fields: logged.append((level, event, fields))

    monkeypatch.setattr(daemon, "log", Log())
    error = SinkError("it is full")
    error.add_note("the commit failed, too")
    error.__cause__ = OSError("no space")
    assert run(monkeypatch, error, []) == 1
    assert logged == [
        ("error", "stopped by a failure", {"group": "g", "error": "SinkError", "reason": "it is full"}),
        ("error", "another failure", {"group": "g", "reason": "the commit failed, too"}),
        ("debug", "caused by", {"exc_info": error.__cause__}),
    ]
    logged.clear()
    assert run(monkeypatch, KzConsumerError("alone"), []) == 1
    assert [event for _, event, _ in logged] == ["stopped by a failure"]
