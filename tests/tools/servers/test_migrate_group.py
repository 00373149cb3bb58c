"""The script docs/examples/migrate_group.sh, for a group that has members when it is first started."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path

from kzconsumer_sandbox.servers.kafka_servers import Cluster
from tests.core.servers.test_offset_storage import fill
from tests.support.consuming import member, take
from tests.support.extent import extent
from tests.support.kafka_offsets import kafka_offset
from tests.support.zookeeper_sessions import until

SCRIPT = Path(__file__).parents[3] / "docs" / "examples" / "migrate_group.sh"


@contextmanager
def started(cluster: Cluster, folder: Path, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """The script in `folder`, with its output in a file there; killed at the end if it still runs."""
    (folder / "kzconsumer").write_text(f'#!/bin/sh\nexec {sys.executable} -m kzconsumer "$@"\n')
    (folder / "kzconsumer").chmod(0o755)
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    environment["KZCONSUMER__ZOOKEEPER__CONNECT"] = cluster.connect
    with (folder / "output").open("wb") as out:
        script = subprocess.Popen([SCRIPT, *words], cwd=folder, env=environment, stdout=out, stderr=out)
    try:
        yield script
    finally:
        script.kill()
        script.wait()


async def test_a_script_that_was_killed_while_it_waited_moves_the_group_when_it_is_started_again(
    cluster: Cluster, unique: str, tmp_path: Path
) -> None:
    await fill(cluster, unique)
    output = tmp_path / "output"
    async with AsyncExitStack() as joined:
        _, streams = await joined.enter_async_context(member(cluster, unique, {unique: 1}))
        await take(streams[unique][0], 7)
        streams[unique][0].ack()
        with started(cluster, tmp_path, unique, f"{unique}-v2"):
            await until(lambda: "waiting for its members" in output.read_text(), 60)
            assert await kafka_offset(cluster, f"{unique}-v2", unique) is None
    # The group has records left to read, and nobody who reads them.
    with started(cluster, tmp_path, unique, f"{unique}-v2") as script:
        await until(lambda: script.poll() is not None, 90)
    assert script.returncode == 0, output.read_text()
    assert await kafka_offset(cluster, f"{unique}-v2", unique) == 7
    (undo,) = tmp_path.glob("*.jsonl")
    assert undo.name in output.read_text()
    for mistyped in extent([], [f"{unique}-"]):
        with started(cluster, tmp_path, mistyped, f"{unique}-v2") as script:
            await until(lambda: script.poll() is not None, 60)
        said = f"kzconsumer: {cluster.connect}: there is no group {mistyped}; did you mean {unique}?\n"
        assert (script.returncode, output.read_text()) == (1, said)
