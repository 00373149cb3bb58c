"""Verbs on a real cluster with a standard output that is full, and nightly every verb, also with one that is closed or
of ASCII. In `make test` those that change something, and one that reads; plain/test_outputs.py has the help of all.
"""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_sandbox.servers.topic_creation import create_topic
from tests.support.extent import NIGHTLY, extent
from tests.support.odd_outputs import Kind, odd_outputs
from tests.support.producing import Sent, produce
from tests.support.zookeeper_sessions import session
from tests.tools.plain.test_outputs import verbs

pytestmark = pytest.mark.timeout(300)

KINDS: tuple[Kind, ...] = extent(("full",), ("full", "closed", "ascii"))
ELSEWHERE = {
    "run": "its sink writes (core/servers, jsonlines)",
    "exporter": "it prints nothing",
    "demo": "it starts servers",
    "manual": "needs no server",
    "plugins": "needs no server",
    "completion": "needs no server",
    "sandbox up": "starts servers",
    "sandbox migrate": "needs a running sandbox",
    "sandbox topic": "needs a running sandbox",
    "sandbox produce": "needs a running sandbox",
    "sandbox env": "needs a running sandbox",
    "sink verify": "needs a Spark's table",
    "sink replay": "needs a quarantine",
    "sink try": "needs a Spark",
}
"""Verbs without a row below; their help is tested with all others (plain/test_outputs.py)."""


def commands(cluster: Cluster, topic: str, group: str, folder: Path) -> dict[str, list[str]]:
    """A command of each verb whose result is printed."""
    file = folder / f"{group}.toml"
    file.write_text(
        f'[zookeeper]\nconnect = "{cluster.connect}"\n[group]\nid = "{group}"\n'
        f'[subscription]\ntopics = {{ "{topic}" = 1 }}\n[sink]\nplugin = "jsonlines"\n'
    )
    properties = folder / "consumer.properties"
    properties.write_text(f"zookeeper.connect={cluster.connect}\ngroup.id={group}\n")
    at = ["--zookeeper", cluster.connect]
    undo = f"{group}-%s.jsonl"
    return {
        "check-config": [str(file)],
        "cluster describe": at,
        "config import": [str(properties)],
        "consume": [topic, "-e", *at],
        "context set": [group, f"zookeeper.connect={cluster.connect}"],
        "context list": [],
        "context use": [group],
        "context delete": [group],
        "groups list": at,
        "groups describe": [group, *at],
        "groups plan": ["--config", str(file)],
        "groups move": [group, "--to-kafka", *at],
        "groups verify": [group, *at],
        "groups doctor": [group, *at],
        "lag": [group, *at],
        "offsets show": [group, *at],
        "offsets export": [group, *at],
        "groups clean": [group, "--execute", "--undo", undo % "clean", *at],
        "offsets reset": [group, "--topic", topic, "--to-earliest", "--execute", "--undo", undo % "reset", *at],
        "offsets import": [undo % "reset", "--execute", "--undo", undo % "import", *at],
        "offsets clone": [group, f"{group}-copy", "--execute", "--undo", undo % "clone", *at],
        "groups delete": [group, "--execute", "--undo", undo % "delete", *at],
        "groups restore": [undo % "delete", "--execute", *at],
        "sandbox status": [],
        "sandbox down": [],
        "top": ["127.0.0.1:1", "--once"],
        "topics list": at,
        "topics describe": [topic, *at],
        "topics reassign": [f"{topic}:0=1", *at],
        "topics elect-preferred": [topic, *at],
        "topics config set": [topic, f"retention.ms={10**9 + len(group)}", "--execute", *at],
        "topics config get": [topic, *at],
        "topics delete": [topic, *at],
    }


CHANGED = ("offsets reset", "offsets import", "offsets clone", "groups clean", "groups delete", "groups restore")


async def test_what_was_done_is_told_if_the_result_cannot_be_written(
    cluster: Cluster, unique: str, tmp_path: Path
) -> None:
    await create_topic(cluster.connect, unique, 2)
    produce(cluster.bootstrap, cluster.version, unique, [Sent(n % 2, None, b"x") for n in range(10)])
    async with session(cluster.connect) as zookeeper:
        for kind in KINDS:
            group = f"{unique}-{kind}"
            await zookeeper.ensure(f"/consumers/{group}/offsets/{unique}/0")
            await zookeeper.set(f"/consumers/{group}/offsets/{unique}/0", b"3", -1)
            await zookeeper.ensure(f"/consumers/{group}/owners/{unique}/1")
            await zookeeper.set(f"/consumers/{group}/owners/{unique}/1", "höst…-0".encode(), -1)
        async with anyio.create_task_group() as tasks:
            for kind in KINDS:
                tasks.start_soon(each_verb, kind, cluster, unique, f"{unique}-{kind}", tmp_path / kind)
        for kind in KINDS:  # the change of the last verb was made, whatever its output
            node = await zookeeper.get(f"/consumers/{unique}-{kind}/offsets/{unique}/0")
            assert node.data == b"3"


async def each_verb(kind: Kind, cluster: Cluster, topic: str, group: str, folder: Path) -> None:
    folder.mkdir()
    words = commands(cluster, topic, group, folder)
    assert {*words, *ELSEWHERE} == {" ".join(each) for each in verbs()}
    if NIGHTLY is None:
        words = {verb: rest for verb, rest in words.items() if verb in ("consume", "lag", *CHANGED)}
    tried: list[tuple[Kind, list[str]]] = [(kind, [*verb.split(), *rest]) for verb, rest in words.items()]
    places = {"XDG_CONFIG_HOME": str(folder), "XDG_RUNTIME_DIR": str(folder), "XDG_STATE_HOME": str(folder)}
    found = await odd_outputs(tried, folder, places)
    for verb, (_, given), done in zip(words, tried, found, strict=True):
        about = f"{kind}: {' '.join(given)}: {done}"
        assert "Traceback" not in done.err, about
        assert "Exception ignored" not in done.err, about
        assert done.out.isascii(), about
        if kind == "ascii":
            assert done.status in (0, 3, 4), about
        else:
            assert (done.status, "kzconsumer: standard output: " in done.err) == (74, True), about
        if kind != "ascii" and verb in CHANGED:
            assert "; the changes were made" in done.err, about
            if "--undo" in given:
                undo = given[given.index("--undo") + 1]
                assert f"; the undo file is {undo}\n" in done.err, about
                assert (folder / undo).exists(), about
