"""Groups of original, kafka-node and our members on three ZooKeeper servers and two brokers, under random faults.

    python -m tests.interop --minutes 30
    python -m tests.interop --seed 4711 --minutes 3

Each group has three minutes and a seed, from which its members and faults follow; the next has the next seed. Ends with
status 1 if the judge objects, and then keeps the logs of that group. `--plant` puts a bug into our members, which the
judge has to find.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console

from kzconsumer.logs import setup
from tests.interop.evidence import Kind
from tests.interop.plants import PLANTS
from tests.interop.programs import KafkaNodeMissingError, find_kafka_node
from tests.interop.report import complaints, table
from tests.interop.run import Result, Setup, run

GROUP_MINUTES = 3.0


async def main(
    seed: int, minutes: float, count: int, plant: str | None = None, place: Path | None = None
) -> list[Result]:
    """One group after the other; ends with the first to which the judge objects. `place` is the folder for logs."""
    console = Console(width=150)
    setup.configure("error", "console")
    kinds = [Kind.ORIGINAL, Kind.KAFKA_NODE, Kind.OURS]
    try:
        find_kafka_node()
    except KafkaNodeMissingError as error:
        console.print(f"without kafka-node: {error}")
        kinds.remove(Kind.KAFKA_NODE)
    groups = max(1, round(minutes / GROUP_MINUTES))
    results: list[Result] = []
    for number in range(groups):
        folder = Path(tempfile.mkdtemp(prefix=f"kzconsumer-interop-{seed + number}-", dir=place))
        console.print(f"seed {seed + number}: {minutes / groups:g} minutes, logs in {folder}")
        result = await run(Setup(seed + number, minutes / groups * 60, count, kinds, plant), folder)
        results.append(result)
        for line in complaints(result):
            console.print(line, markup=False, highlight=False, soft_wrap=True)
        if result.verdict.violations:
            console.print(f"[red]seed {seed + number}: the logs are in {folder}")
            break
        shutil.rmtree(folder)
    console.print(table(results))
    return results


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.interop", description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=time.time_ns() // 1_000_000 % 1_000_000, help="of the first group")
    parser.add_argument("--minutes", type=float, default=GROUP_MINUTES, help="of faults; three for each group (3)")
    parser.add_argument("--members", type=int, default=5, help="of each group (5)")
    parser.add_argument("--plant", choices=PLANTS, help="a bug for our members: the judge has to find it")
    given = parser.parse_args()
    found = asyncio.run(main(given.seed, given.minutes, given.members, given.plant))
    sys.exit(1 if any(each.verdict.violations for each in found) else 0)
