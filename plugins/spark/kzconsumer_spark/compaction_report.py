"""A compaction as `kzconsumer sink compact` tells it: planned or done, by directory.

Owns no state; blocking. The sink calls `compact` once its destination has been found.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path, PurePath

from kzconsumer.sinks.interface import Compacted, CompactedDirectory
from kzconsumer_spark.compaction import Compactions
from kzconsumer_spark.holdings import described
from kzconsumer_spark.merge_plan import Union
from kzconsumer_spark.messages import To, ToDelta, ToFiles
from kzconsumer_spark.target import NotOurs, Target


def compact(to: To, size: int, grace: float, show: Callable[[int, int], None] | None) -> Compacted:
    """With `show` it is done, else planned. Raises NotOurs for what is not Parquet in a directory; Busy, OSError."""
    if isinstance(to, ToDelta):
        raise NotOurs(
            "a Delta table is compacted by its own OPTIMIZE (DeltaTable.optimize.compact), beside members, too"
        )
    if not isinstance(to, ToFiles):
        raise NotOurs(f"{described(to)} has no files to be compacted")
    if to.format != "parquet":
        raise NotOurs(f"{described(to)}: only Parquet is compacted, for of others no reader tells a mark from a row")
    compactions = Compactions(Target(Path(to.path)))
    left: dict[str, str] = {}
    if show is None:
        planned = compactions.plan(size)
    else:
        planned, left = compactions.run(size, grace, show)
    return Compacted(
        destination=described(to),
        done=show is not None,
        directories=tuple(_by_directory(planned)),
        left=tuple(f"{name}: {reason}" for name, reason in left.items()),
    )


def _by_directory(planned: Sequence[Union]) -> list[CompactedDirectory]:
    directories: dict[str, list[Union]] = {}
    for union in planned:
        directories.setdefault(str(PurePath(union.name).parent), []).append(union)
    return [
        CompactedDirectory(
            directory=directory,
            files=sum(len(each.files) for each in made),
            into=len(made),
            size=sum(file.size for each in made for file in each.files),
        )
        for directory, made in sorted(directories.items())
    ]
