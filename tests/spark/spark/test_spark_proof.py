"""What Spark itself reports of a run with default settings: its tasks read and wrote every record that was consumed."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from kzconsumer.sinks.interface import Batch
from tests.support.extent import only_nightly
from tests.support.range_data import range_data
from tests.support.served_sink import ServedSink

pytestmark = pytest.mark.timeout(300)
LIMIT = 60.0
BATCHES = ((3000, 200, 0), (1,), (40, 2000))
RECORDS = sum(map(sum, BATCHES))


@only_nightly
async def test_sparks_tasks_read_and_write_all_records_that_are_consumed(tmp_path: Path) -> None:
    """In its event log, in its REST API, in the progress of the query, and in the sink's status."""
    (tmp_path / "events").mkdir()
    log = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": (tmp_path / "events").as_uri(),
        "spark.eventLog.compress": "false",
    }
    options = {"destination": "parquet", "path": str(tmp_path / "out"), "ui": True, "conf": log}
    descriptions = []
    async with ServedSink(options, "orders") as sink:
        for number, sizes in enumerate(BATCHES):
            data = [range_data("t", n, 5000 * number, 5000 * number + size) for n, size in enumerate(sizes)]
            await sink.write(Batch(tuple(data)))
            named = ", ".join(str(part.range) for part in data if part.records)
            descriptions.append(f"batch {sink.last_batch['spark_batch']}: {named}")
        with anyio.fail_after(LIMIT):
            while not (last := sink.status["last_progress"]) or last["batch_id"] != len(BATCHES):  # type: ignore[index]
                await anyio.sleep(0.02)
        assert last["query"] == "orders"  # type: ignore[index]
        assert last["input_rows"] == sum(BATCHES[-1])  # type: ignore[index]
        stages = await anyio.to_thread.run_sync(stages_of, sink)
    events = list(events_in(tmp_path / "events"))

    assert sum(each["inputRecords"] for each in stages if each.get("description") in descriptions) == RECORDS
    assert sum(each["outputRecords"] for each in stages if each.get("description") in descriptions) == RECORDS

    jobs = [each for each in events if each["Event"] == "SparkListenerJobStart"]
    ours = [each for each in jobs if each["Properties"].get("spark.job.description") in descriptions]
    assert [each["Properties"]["spark.job.description"] for each in ours] == descriptions
    of_ours = {stage for each in ours for stage in each["Stage IDs"]}
    ended = [each for each in events if each["Event"] == "SparkListenerTaskEnd" and each["Stage ID"] in of_ours]
    read = [each["Task Metrics"]["Input Metrics"]["Records Read"] for each in ended]
    written = [each["Task Metrics"]["Output Metrics"]["Records Written"] for each in ended]
    each_range = sorted(size for sizes in BATCHES for size in sizes if size)
    assert sorted(read) == sorted(written) == each_range, "a task for each range"

    progress = [each["progress"] for each in events if each["Event"].endswith("QueryProgressEvent")]
    assert [each["sources"][0]["numInputRows"] for each in progress] == [1, *map(sum, BATCHES)], (
        "the first is that of the start"
    )


def stages_of(sink: ServedSink) -> list[dict[str, Any]]:
    """As Spark's pages show them."""
    address = f"{sink.status['ui']}/api/v1/applications/{sink.status['application']}/stages"
    with urllib.request.urlopen(address, timeout=LIMIT) as answer:
        found: list[dict[str, Any]] = json.load(answer)
    return found


def events_in(directory: Path) -> Iterator[dict[str, Any]]:
    for file in sorted(each for each in directory.rglob("*") if each.is_file() and each.name.startswith("events_")):
        yield from map(json.loads, file.read_text().splitlines())
