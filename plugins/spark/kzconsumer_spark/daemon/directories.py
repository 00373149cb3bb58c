"""The sink's directories: `scratch`, local to this machine, and the spool, which executors read too."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from kzconsumer.errors import ConfigError
from kzconsumer.own_directory import own_directory
from kzconsumer_files.private_directory import PrivateDirectory, sweep
from kzconsumer_spark.daemon.options import WHERE, SparkOptions, local_path
from kzconsumer_spark.daemon.spool_place import SpoolPlace, is_object_store


class Directories(NamedTuple):
    """Both belong to this process alone and are created empty."""

    scratch: Path
    spool: SpoolPlace
    remove: Callable[[], None]


def make_directories(options: SparkOptions) -> Directories:
    """Also removes those of dead processes. Raises ConfigError if a directory cannot be used.

    That of the event log is shared and is kept.
    """
    if options.event_log is not None and options.event_log.startswith("file:"):
        try:
            local_path(options.event_log).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError([f"{WHERE} event_log: {error}"]) from error
    temporary = options.scratch or tempfile.gettempdir()
    scratch = _private("scratch", temporary)
    try:
        place, remove_spool = _spool(options, options.spool or temporary)
    except BaseException:
        scratch.remove()
        raise

    def remove() -> None:
        remove_spool()
        scratch.remove()

    return Directories(scratch.path, place, remove)


def _spool(options: SparkOptions, where: str) -> tuple[SpoolPlace, Callable[[], None]]:
    if is_object_store(where):
        try:
            place = SpoolPlace.in_object_store(where, options.conf)
        except (OSError, ValueError) as error:
            raise ConfigError([f"{WHERE} spool: {where}: {error}"]) from error
        return place, place.remove
    directory = _private("spool", where)
    return SpoolPlace.in_directory(directory.path), directory.remove


def _private(option: str, path: str) -> PrivateDirectory:
    try:
        parent = own_directory("spark", path)
        sweep(parent)
        return PrivateDirectory(parent)
    except OSError as error:
        raise ConfigError([f"{WHERE} {option}: {error}"]) from error
