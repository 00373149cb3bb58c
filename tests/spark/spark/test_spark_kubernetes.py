"""Kubernetes as the master: what the driver asks of an API server, which is a fake one on loopback."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from aiohttp import web

from kzconsumer.sinks.interface import SinkContext
from kzconsumer_sandbox.servers.configuration import HOST, free_port
from kzconsumer_spark.daemon.sink import SparkSink
from tests.support.batch_ranges import SETTINGS
from tests.support.extent import only_nightly

pytestmark = pytest.mark.timeout(300)
LIMIT = 200.0
CONTEXT = SinkContext(group="orders", member="m", cluster="c", safe_until=lambda: math.inf, settings=SETTINGS)


class Kubernetes:
    """Accepts every object and starts none; `posted` has the objects by kind, in the order of their requests."""

    def __init__(self) -> None:
        self.port = free_port()
        self.posted: dict[str, list[dict[str, Any]]] = {"pods": [], "configmaps": []}

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        app = web.Application()
        app.router.add_post("/api/v1/namespaces/{namespace}/{kind}", self._create)
        app.router.add_route("*", "/{path:.*}", self._other)
        runner = web.AppRunner(app)
        await runner.setup()
        try:
            await web.TCPSite(runner, HOST, self.port).start()
            yield
        finally:
            await runner.cleanup()

    async def _create(self, request: web.Request) -> web.Response:
        made = await request.json()
        self.posted.setdefault(request.match_info["kind"], []).append(made)
        made["metadata"] |= {"namespace": request.match_info["namespace"], "uid": "1", "resourceVersion": "1"}
        return web.json_response(made, status=201)

    async def _other(self, request: web.Request) -> web.Response:
        if request.method == "GET" and request.path.endswith("/pods") and "watch" not in request.query:
            return web.json_response({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": []})
        return web.json_response({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404}, status=404)


@only_nightly  # what Kubernetes needs and is refused: tests/spark/plain/test_spark_options.py
async def test_executors_are_pods_of_the_image_without_secrets(tmp_path: Path) -> None:
    kubernetes = Kubernetes()
    options = {
        "destination": "parquet",
        "path": str(tmp_path / "out"),
        "master": f"k8s://http://{HOST}:{kubernetes.port}",
        "scratch": str(tmp_path / "scratch"),
        "start_timeout": "240s",
        "attempts": 1,
        "conf": {
            "spark.kubernetes.container.image": "registry/spark:4.3",
            "spark.kubernetes.namespace": "lake",
            "spark.kubernetes.authenticate.oauthToken": "planted",
            "spark.hadoop.fs.s3a.secret.key": "planted",
            "spark.executor.instances": "1",
            "spark.driver.memory": "512m",
        },
    }
    async with kubernetes.running(), anyio.create_task_group() as tasks:
        tasks.start_soon(SparkSink(options, CONTEXT).__aenter__)  # waits for its executors
        with anyio.fail_after(LIMIT):
            while not kubernetes.posted["pods"]:
                await anyio.sleep(0.05)
        tasks.cancel_scope.cancel()
    pod, *_ = kubernetes.posted["pods"]
    (container,) = pod["spec"]["containers"]
    given = {each["name"]: each.get("value") for each in container["env"]}
    assert container["image"] == "registry/spark:4.3"
    assert pod["metadata"]["namespace"] == "lake"
    assert pod["metadata"]["labels"]["spark-app-name"] == "orders"
    assert given["SPARK_DRIVER_URL"].endswith(f"@{HOST}:{given['SPARK_DRIVER_URL'].rpartition(':')[2]}")
    assert given["TZ"] == "UTC"
    assert "planted" not in json.dumps(kubernetes.posted)
