"""The contract of sinks for a destination in an object store, which all of a class's members reach."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import ClassVar, NamedTuple

import msgspec
import pytest

from tests.support.extent import extent
from tests.support.object_store import ObjectStore, Scheme
from tests.support.sink_contract import OurSinkContract

_REACH = "reach.json"


class Reach(NamedTuple):
    """A destination of files, a warehouse of tables, and what clients need for both: see `ObjectStore`."""

    lake: str
    warehouse: str
    options: dict[str, str]
    properties: dict[str, str]
    environment: dict[str, str]


class StoreContract(OurSinkContract):
    """With real kills, zombies and races of processes that share nothing but the store."""

    stack: ClassVar[ExitStack]
    scheme: ClassVar[Scheme] = "s3"
    store: ClassVar[ObjectStore]
    kills = extent(2, 40)
    zombies = extent(1, 20)
    races = extent(2, 40)

    @classmethod
    def setup_class(cls) -> None:
        cls.stack = ExitStack()
        folder = cls.stack.enter_context(tempfile.TemporaryDirectory())
        cls.store = cls.stack.enter_context(ObjectStore.running(Path(folder), scheme=cls.scheme))
        patch = cls.stack.enter_context(pytest.MonkeyPatch.context())
        for key, value in cls.store.environment.items():
            patch.setenv(key, value)
        super().setup_class()
        # Processes of members may have the environment of an earlier class.
        store = cls.store
        reach = Reach(store.uri("lake"), store.uri("warehouse"), store.options, store.properties, store.environment)
        (cls.group.directory / _REACH).write_bytes(msgspec.json.encode(reach))

    @classmethod
    def teardown_class(cls) -> None:
        super().teardown_class()
        cls.stack.close()

    def copy(self, directory: Path) -> Callable[[], None]:
        return self.store.copied()

    @staticmethod
    def reach(directory: Path) -> Reach:
        """How a member reaches the store, in whose process this is called. `directory` is the contract's."""
        reach = msgspec.json.decode((directory / _REACH).read_bytes(), type=Reach)
        os.environ |= reach.environment
        return reach
