"""Functions that tests pass to the Spark sink, and the files they leave for the test.

They run in the sink's worker process and communicate through the directory that `FUNCTION_DIRECTORY` names.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

FUNCTION_DIRECTORY = "KZCONSUMER_TEST_DIRECTORY"


def obey(df: Any, batch_id: int) -> None:
    """Write down the arguments; fail or stall while a file requests it."""
    directory = Path(os.environ[FUNCTION_DIRECTORY])
    with (directory / "calls").open("a") as calls:
        calls.write(json.dumps({"batch_id": batch_id, "pid": os.getpid()}) + "\n")
    print("a function may print")
    if (directory / "fail").exists():
        raise ValueError("told to fail\nwith a second line")
    while (directory / "stall").exists():
        time.sleep(0.02)
    seen = {
        "schema": df.schema.simpleString(),
        "rows": [json.loads(row) for row in df.orderBy("partition", "offset").toJSON().collect()],
    }
    if "timestamp" in df.columns:
        seen["local"] = [str(row["timestamp"]) for row in df.orderBy("partition", "offset").collect()]
    if (directory / "table").exists():
        table = df.sparkSession.read.parquet(str(directory / "table"))
        seen["table"] = sorted(row["text"] for row in table.collect())
    (directory / f"seen-{batch_id}").write_text(json.dumps(seen))


def hide(df: Any, batch_id: int) -> None:
    """As `obey`; while a file requests it, the reason of a failure is lost."""
    try:
        obey(df, batch_id)
    except Exception:
        if Path(os.environ[FUNCTION_DIRECTORY], "hide").exists():
            raise ValueError("the reason is hidden") from None
        raise


def append(df: Any, batch_id: int) -> None:
    """A typical first attempt: it lingers a little, so that a kill may happen between the write and its commit."""
    df.select("partition", "offset").write.mode("append").parquet(str(Path(os.environ[FUNCTION_DIRECTORY], "appended")))
    time.sleep(1.0)
