"""`pip install kzconsumer` and nothing else: a member runs, and what is missing is reported with what installs it."""

from __future__ import annotations

import asyncio
import json
import subprocess
from pathlib import Path

import pytest

from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_sandbox.servers.topic_creation import create_topic
from tests.support.installing import build_core, declared_environment
from tests.support.producing import Sent, produce


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_core(tmp_path_factory.mktemp("dist")).parent


@pytest.fixture(scope="module")
def commands(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The commands of an environment with the core and the packages that it declares to need."""
    (wheel,) = built.iterdir()
    return declared_environment(tmp_path_factory.mktemp("core") / "environment", wheel)


def kzconsumer(commands: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    run_ = [commands / "kzconsumer", *words]
    return subprocess.run(run_, capture_output=True, text=True, check=False, timeout=60, env={"PATH": "/usr/bin:/bin"})


async def test_a_member_runs(commands: Path, cluster: Cluster, unique: str, tmp_path: Path) -> None:
    await create_topic(cluster.connect, unique, 2)
    records = [Sent(n % 2, b"%d" % n, b"value %d" % n) for n in range(1000)]
    await asyncio.to_thread(produce, cluster.bootstrap, cluster.version, unique, records)
    file = tmp_path / "group.toml"
    file.write_text(
        f'[zookeeper]\nconnect = "{cluster.connect}"\n[group]\nid = "{unique}"\n'
        f'[subscription]\ntopics = {{ {unique} = 1 }}\nstop_at = "end"\n[sink]\nplugin = "jsonlines"\n'
    )
    done = await asyncio.to_thread(kzconsumer, commands, "--config", file)
    assert done.returncode == 0, done.stderr
    found = sorted(int(json.loads(line)["key"]) for line in done.stdout.splitlines())
    assert found == list(range(1000))


def test_nothing_else_is_installed(commands: Path) -> None:
    """The control of the tests here: what the tools, the sandbox and the status page need is not there."""
    for module in ("aiohttp", "confluent_kafka", "kzconsumer_tools", "prometheus_client", "pyspark", "rich"):
        words = [str(commands / "python"), "-I", "-c", f"import {module}"]
        done = subprocess.run(words, capture_output=True, check=False)
        assert done.returncode == 1


@pytest.mark.parametrize(("verb", "extra"), [("groups", "tools"), ("sandbox", "sandbox")])
def test_a_command_of_another_distribution_names_what_installs_it(
    commands: Path, built: Path, verb: str, extra: str
) -> None:
    done = kzconsumer(commands, verb, "list")
    assert done.returncode == 2
    way_out = f'pip install --find-links {built} "kzconsumer[{extra}]" brings it'
    fault = f'kzconsumer: error: no command "{verb}" is installed; {way_out}'
    assert done.stderr == f"{fault}; see kzconsumer --help\n"


def test_a_setting_that_needs_an_extra_names_it(commands: Path, built: Path, tmp_path: Path) -> None:
    file = tmp_path / "group.toml"
    file.write_text(
        '[zookeeper]\nconnect = "127.0.0.1:1"\n[group]\nid = "g"\n[subscription]\ntopics = { t = 1 }\n'
        '[sink]\nplugin = "jsonlines"\n[status]\nlisten = "127.0.0.1:9308"\n[log]\nformat = "journald"\n'
        '[rejected]\npolicy = "dead-letter"\ntopic = "letters"\n'
    )
    done = kzconsumer(commands, "check-config", file)
    assert done.returncode == 78
    installing = f"pip install --find-links {built}"
    assert sorted(line.removeprefix(f"kzconsumer: {file}:") for line in done.stderr.splitlines()) == [
        f'10: [status] listen: needs aiohttp and prometheus_client: {installing} "kzconsumer[status]"',
        f'12: [log] format: needs logging_journald: {installing} "kzconsumer[journald]"',
        f'15: [rejected] topic: needs confluent_kafka: {installing} "kzconsumer[dead-letter]"',
    ]
