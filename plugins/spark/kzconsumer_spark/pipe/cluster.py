"""A cluster as the master: the options it needs, and the address by which it reaches the driver."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from typing import Final

STANDALONE: Final = re.compile(r"spark://([^\s,/]+:\d+)(,[^\s,/]+:\d+)*")
_KUBERNETES: Final = re.compile(r"k8s://(https?://)?[^\s,/]+:\d+")
_IMAGES: Final = ("spark.kubernetes.container.image", "spark.kubernetes.executor.container.image")


def is_cluster(master: str | None) -> bool:
    """Whether executors are other processes than the driver, which is the worker itself (client mode)."""
    named = master or ""
    return named == "yarn" or STANDALONE.fullmatch(named) is not None or _KUBERNETES.fullmatch(named) is not None


def require_whole(master: str, spool: str | None, conf: Mapping[str, str], *, fetches: bool) -> None:
    """Raises ValueError for what goes with a cluster and is missing, and for what goes with nothing else."""
    if conf.get("spark.submit.deployMode", "client") != "client":
        raise ValueError(
            "conf.spark.submit.deployMode: only client is supported, the driver is the member's own worker"
        )
    if not is_cluster(master):
        if spool is not None:
            raise ValueError("spool goes with the master of a cluster; a local Spark reads what is in scratch")
        return
    if spool is None and not fetches:
        raise ValueError(f'spool is missing: master "{master}" needs a directory, or a URI, that all its executors see')
    if STANDALONE.fullmatch(master) and "spark.cores.max" not in conf:
        raise ValueError(
            f'conf is without spark.cores.max: master "{master}" gives all cores to the first member that comes,'
            " and the others wait for ever"
        )
    if _KUBERNETES.fullmatch(master):
        _require_pods(master, conf)


def _require_pods(master: str, conf: Mapping[str, str]) -> None:
    if not any(image in conf for image in _IMAGES):
        raise ValueError(f'conf is without {_IMAGES[0]}: master "{master}" starts executors from that image')
    for key in conf:
        # Spark passes these as variables of the executors' pods.
        if key.startswith("spark.ssl.") and key.endswith("assword"):
            raise ValueError(f"conf.{key} cannot be set with Kubernetes: everybody who sees a pod could read it")


def local_address(master: str) -> str:
    """Of this machine, the address from which packets to the (first) master go. Nothing is sent. Raises OSError."""
    host, _, port = master.rpartition("://")[2].partition(",")[0].rpartition(":")
    kind, *_, address = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)[0]
    with socket.socket(kind, socket.SOCK_DGRAM) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])
