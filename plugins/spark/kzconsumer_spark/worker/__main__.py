"""Where a worker process begins: Java starts while Python loads what will use it.

Started by `daemon.worker_process` in a session of its own, with the command pipe as standard input and the event pipe
as standard output.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from kzconsumer_spark.worker.spark_session import start_java, take_pipes
from kzconsumer_spark.worker_protocol.messages import StartWorker, decode_command


def main() -> None:
    commands, events = take_pipes()
    start = decode_command(commands.readline())
    assert isinstance(start, StartWorker)
    Path(start.scratch).mkdir()
    java = ThreadPoolExecutor(1).submit(start_java, start)
    from kzconsumer_spark.worker.worker_main import run  # a second of imports

    run(start, commands, events, java)


if __name__ == "__main__":
    main()
