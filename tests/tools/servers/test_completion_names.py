"""Shells complete the names of groups, topics and contexts, of the cluster that the unfinished command names."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kzconsumer.cli.main import main
from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_sandbox.servers.topic_creation import create_topic
from kzconsumer_tools.commands import completion
from tests.support.extent import NIGHTLY
from tests.support.programs import FISH, ZSH, need
from tests.support.zookeeper_sessions import session


@pytest.fixture
async def named(cluster: Cluster, unique: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """A topic and a group, both of the name `unique`, and a context."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.delenv("KZCONSUMER__ZOOKEEPER__CONNECT", raising=False)
    monkeypatch.chdir(tmp_path)
    await create_topic(cluster.connect, unique, 1)
    async with session(cluster.connect) as zookeeper:
        await zookeeper.ensure(f"/consumers/{unique}")
        await zookeeper.ensure(f"/consumers/{unique}$(echo>executed)")
    return cluster


def offered(shell: str, script: str, line: str) -> list[str]:
    """What the shell offers after `line`, which ends with an unfinished word."""
    Path("script").write_text(script)
    words = line.split(" ")
    if shell == "bash":
        program = f"""source ./script; COMP_LINE="{line}"; COMP_WORDS=({" ".join(words[:-1])} "{words[-1]}")
            COMP_CWORD={len(words) - 1}; _shtab_kzconsumer; printf "%s\\n" "${{COMPREPLY[@]}}" """
        command = ["bash", "-c", program]
    elif shell == "fish":
        command = [str(need(FISH)), "-c", f"source ./script; complete -C '{line}'"]
    else:  # completion proper needs a terminal
        kind = "contexts" if "context" in line else "topics" if "topics" in line else "groups"
        function = next(each for each in script.splitlines() if each.startswith(f"_kzconsumer_{kind}()"))
        program = f"compadd() {{ shift; print -l -- $@ }}; words=({line}); {function}; _kzconsumer_{kind}"
        command = [str(need(ZSH)), "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == ""
    return [each.split("\t")[0] for each in done.stdout.splitlines()]


@pytest.mark.parametrize("shell", completion.SHELLS)
async def test_names_are_completed(named: Cluster, unique: str, shell: str) -> None:
    script, here = completion.script(shell), f"--zookeeper {named.connect}"
    begun = unique[:6]
    assert unique in offered(shell, script, f"kzconsumer lag {here} {begun}")
    assert not Path("executed").exists()
    if shell != "bash" and NIGHTLY is None:  # the rest is the same program's, whatever calls it
        return
    assert unique in offered(shell, script, f"kzconsumer topics describe {here} {begun}")
    assert main(["context", "set", "prod", f"zookeeper.connect={named.connect}"]) == 0
    assert "prod" in offered(shell, script, "kzconsumer context use p")
    assert unique in offered(shell, script, f"kzconsumer offsets show {begun}"), "of the current context"
    assert unique not in offered(shell, script, f"kzconsumer lag --zookeeper 127.0.0.1:1 {begun}")


def test_a_cluster_that_is_down_is_waited_for_a_second_in_silence(capfd: pytest.CaptureFixture[str]) -> None:
    before = time.monotonic()
    assert main(["completion", "groups", "kzconsumer lag --zookeeper 127.0.0.1:1 "]) == 0
    assert time.monotonic() - before < completion.LIMIT + 1
    assert capfd.readouterr() == ("", "")
