"""A FastAPI application that consumes.

Shows: a consumer in the lifespan of the application, health, lag.

pip install fastapi uvicorn
eval "$(kzconsumer sandbox env)"      # or: export KZCONSUMER__ZOOKEEPER__CONNECT=zk1:2181/kafka
python web_api.py                     # http://127.0.0.1:8000/totals, /partitions, /health

Totals are kept in memory: after another start they have only the orders since then.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from fastapi import FastAPI, Response

import kzconsumer

totals = Counter[str]()


async def count(stream: kzconsumer.KafkaStream) -> None:
    async for message in stream:
        order = json.loads(message.value or b"")
        totals[order["customer"]] += order["cents"]


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    zookeeper = os.environ["KZCONSUMER__ZOOKEEPER__CONNECT"]
    async with kzconsumer.connect(zookeeper=zookeeper, group="example-web") as consumer:
        (stream,) = (await consumer.create_message_streams({"orders": 1}))["orders"]
        app.state.consumer = consumer
        app.state.counting = asyncio.create_task(count(stream))
        yield
        await consumer.leave()  # commits, and ends the stream
        await app.state.counting


app = FastAPI(lifespan=lifespan)


@app.get("/totals")
async def show_totals() -> dict[str, int]:
    return dict(totals.most_common(10))


@app.get("/partitions")
async def show_partitions() -> list[dict[str, object]]:
    positions = app.state.consumer.positions()
    ends = await app.state.consumer.end_offsets([at.topic_partition for at in positions])
    return [{"partition": at.partition, "processed": at.processed, "end": ends[at.topic_partition]} for at in positions]


@app.get("/health")
async def show_health(response: Response) -> dict[str, bool]:
    consuming = not app.state.counting.done()  # it ends with an exception: the application is to be started again
    response.status_code = 200 if consuming else 503
    return {"consuming": consuming}


if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(os.environ.get("PORT", "8000")))
