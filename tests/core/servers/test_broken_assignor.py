"""A member whose assignor breaks its contract ends with an error that names the distribution."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

import kzconsumer
from kzconsumer.errors import PluginError
from kzconsumer.plugins import ASSIGNORS
from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_sandbox.servers.topic_creation import create_topic
from tests.support.installed_plugins import install


async def test_the_distribution_is_named(
    cluster: Cluster, unique: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "lazy_assignor.py").write_text("def assign(context):\n    return {}\n")
    install(tmp_path, "lazy-assignor", ASSIGNORS, "lazy = lazy_assignor:assign")
    await create_topic(cluster.connect, unique, 1)
    tables = {"zookeeper": {"connect": cluster.connect}, "group": {"id": unique, "assignor": "lazy"}}
    with anyio.fail_after(30), pytest.raises(PluginError) as caught:
        async with kzconsumer.connect(kzconsumer.Settings.from_dict(tables)) as consumer:
            await consumer.create_message_streams({unique: 1})
    assert str(caught.value) == (f'assignor "lazy" (lazy_assignor:assign, from lazy-assignor 1.0) left out {unique}-0')
