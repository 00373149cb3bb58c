"""A standalone Spark cluster as the master: the options it needs, and the address by which it reaches the driver."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from typing import Final

_MASTERS: Final = re.compile(r"spark://([^\s,/]+:\d+)(,[^\s,/]+:\d+)*")


def is_cluster(master: str | None) -> bool:
    """Whether it is `spark://host:port`, or several of these with commas between (masters that stand by)."""
    return _MASTERS.fullmatch(master or "") is not None


def require_whole(master: str, spool: str | None, conf: Mapping[str, str], *, fetches: bool) -> None:
    """Raises ValueError for what goes with a cluster and is missing, and for what goes with nothing else."""
    if not is_cluster(master):
        if spool is not None:
            raise ValueError("spool goes with a master spark://...; a local Spark reads what is in scratch")
        return
    if spool is None and not fetches:
        raise ValueError(f'spool is missing: master "{master}" needs a directory, or a URI, that all its executors see')
    if "spark.cores.max" not in conf:
        raise ValueError(
            f'conf is without spark.cores.max: master "{master}" gives all cores to the first member that comes,'
            " and the others wait for ever"
        )


def local_address(master: str) -> str:
    """Of this machine, the address from which packets to the (first) master go. Nothing is sent. Raises OSError."""
    host, _, port = master.removeprefix("spark://").partition(",")[0].rpartition(":")
    kind, *_, address = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)[0]
    with socket.socket(kind, socket.SOCK_DGRAM) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])
