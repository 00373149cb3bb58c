"""Runs queries of `GroupSource`, and keeps all that Spark and the queries show or write below a folder.

`python -m tests.support.secret_query FOLDER FILE WRONG`: groups' files; the second has a password that is refused.
"""

from __future__ import annotations

import json
import shutil
import sys
import traceback
from pathlib import Path
from typing import Final
from urllib.error import HTTPError
from urllib.request import urlopen

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from kzconsumer_sandbox.servers.configuration import HOST, free_port
from tests.support.source_query import LIMIT, source, starved
from tests.support.spark_session import spark_session

_PAGES: Final = (
    *("jobs/", "stages/", "stages/stage/?id=0&attempt=0", "SQL/", "SQL/execution/?id=0", "StreamingQuery/"),
    *(
        "environment/",
        "executors/",
        "api/v1/applications/{id}/sql?details=true",
        "api/v1/applications/{id}/environment",
    ),
)


def main() -> None:
    folder, config, wrong = Path(sys.argv[1]), *sys.argv[2:]
    port = free_port()
    events = folder / "events"
    events.mkdir(parents=True)
    conf = {
        "spark.ui.enabled": "true",
        "spark.ui.port": str(port),
        "spark.ui.explainMode": "extended",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": events.as_uri(),
        "spark.eventLog.compress": "false",
    }
    with spark_session(folder / "scratch", conf) as session:
        session.sparkContext.setLogLevel("INFO")
        run(session, folder, config)
        (folder / "pages").mkdir()
        for number, page in enumerate(_PAGES):
            address = f"http://{HOST}:{port}/{page.format(id=session.sparkContext.applicationId)}"
            try:
                with urlopen(address) as answer:
                    content = answer.read()
            except HTTPError as error:
                with error:
                    content = error.read()
            (folder / "pages" / str(number)).write_bytes(content)
        shutil.copytree(folder / "scratch", folder / "kept", ignore_dangling_symlinks=True)
        refused(session, folder, config=wrong)


def run(session: SparkSession, folder: Path, config: str) -> None:
    frame = source(session, "", "", config=config)
    while True:
        writer = frame.writeStream.format("parquet").option("path", str(folder / "out"))
        query = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
        try:
            query.awaitTermination(LIMIT)
            break
        except StreamingQueryException as error:
            if not starved(error):
                raise
    (folder / "plan").write_text(f"{query._jsq.explainInternal(True)}\n{frame._jdf.queryExecution()}")
    (folder / "progress").write_text(json.dumps([json.loads(each.json) for each in query.recentProgress]))


def refused(session: SparkSession, folder: Path, config: str) -> None:
    frame = source(session, "", "", config=config)
    query = frame.writeStream.format("noop").option("checkpointLocation", str(folder / "refused")).start()
    try:
        ended = query.awaitTermination(LIMIT // 2)
    except StreamingQueryException as error:
        (folder / "error").write_text(f"{error}\n{query.exception()}\n{traceback.format_exc()}")
    else:
        (folder / "error").write_text(f"ended: {ended}")
        query.stop()


if __name__ == "__main__":
    main()
