"""The socket through which a member learns what Spark has committed."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import stat
import threading
from pathlib import Path
from typing import Any

import pytest

from kzconsumer_spark.source import prompt_commits
from kzconsumer_spark.source.prompt_commits import announce, committed_ends


async def test_an_end_reaches_the_process_that_it_names() -> None:
    found: list[dict[str, Any]] = []
    news = asyncio.Event()

    def take(end: dict[str, Any]) -> None:
        found.append(end)
        news.set()

    async with committed_ends(take) as path:
        assert stat.S_IMODE(os.stat(Path(path).parent).st_mode) == 0o700
        for nothing in (None, "", "{", "[]", '{"socket": ""}', '{"socket": "/no/such"}'):
            await asyncio.to_thread(announce, nothing)
        _, writer = await asyncio.open_unix_connection(path)
        writer.write(b"{")  # no end: passed over
        writer.close()
        end = {"socket": path, "reached": {"t-0": [1, 0, 5]}, "padding": "x" * 1_000_000}
        await asyncio.to_thread(announce, json.dumps(end))
        await asyncio.wait_for(news.wait(), 5)
    assert found == [end]
    assert not Path(path).exists()


async def test_without_a_place_for_a_socket_nothing_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(prompt_commits, "place", lambda: str(tmp_path / "file"))
    async with committed_ends(lambda end: None) as path:
        assert path == ""
    assert "no socket for PromptCommits" in caplog.text


def test_a_process_that_does_not_read_holds_no_listener_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Suspended, say: all queries of the session report to the listener."""
    monkeypatch.setattr(prompt_commits, "SECONDS", 0.05)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path := str(tmp_path / "commits"))
        listening.listen(1)
        end = json.dumps({"socket": path, "padding": "x" * 1_000_000})
        telling = threading.Thread(target=announce, args=(end,), daemon=True)
        telling.start()
        telling.join(20)
        assert not telling.is_alive()
