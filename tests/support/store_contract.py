"""The contract of sinks for a destination in an object store, which all of a class's members reach."""

from __future__ import annotations

import json
import os
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import ClassVar

import pytest

from tests.support.extent import extent
from tests.support.object_store import ObjectStore
from tests.support.sink_contract import OurSinkContract

_ACCESS = "access.json"


class StoreContract(OurSinkContract):
    """With real kills, zombies and races of processes that share nothing but the store."""

    stack: ClassVar[ExitStack]
    store: ClassVar[ObjectStore]
    kills = extent(2, 40)
    zombies = extent(1, 20)
    races = extent(2, 40)

    @classmethod
    def setup_class(cls) -> None:
        cls.stack = ExitStack()
        folder = cls.stack.enter_context(tempfile.TemporaryDirectory())
        cls.store = cls.stack.enter_context(ObjectStore.running(Path(folder)))
        patch = cls.stack.enter_context(pytest.MonkeyPatch.context())
        for key, value in cls.store.environment.items():
            patch.setenv(key, value)
        super().setup_class()
        # Processes of members may have the environment of an earlier class.
        access = {"endpoint": cls.store.endpoint, "environment": cls.store.environment}
        (cls.group.directory / _ACCESS).write_text(json.dumps(access))

    @classmethod
    def teardown_class(cls) -> None:
        super().teardown_class()
        cls.stack.close()

    @staticmethod
    def options(directory: Path) -> dict[str, str]:
        """How a member reaches the store, in whose process this is called. `directory` is the contract's."""
        access = json.loads((directory / _ACCESS).read_text())
        os.environ |= access["environment"]
        return {"aws_endpoint": access["endpoint"], "aws_region": "us-east-1"}
