"""What it means if a sink raises: an error of the sink, one of the package, or the end of this task."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from contextlib import contextmanager

import anyio

from kzconsumer.errors import PLUGIN_FAULTS, KzConsumerError, SinkError, ZooKeeperError, raised
from kzconsumer.sinks.interface import StepNotRecordedError


@contextmanager
def sink_failures(name: str) -> Iterator[None]:
    """What a sink raises becomes SinkError, with the sink's name.

    Errors of the package pass, except those of recording a step: then the write has failed.
    """
    try:
        yield
    except (StepNotRecordedError, ZooKeeperError) as error:
        raise SinkError(f"sink {name}: {error}") from error
    except KzConsumerError:
        raise
    except PLUGIN_FAULTS as error:
        raise SinkError(f"sink {name}: {raised(error)}") from error
    except asyncio.CancelledError as error:
        # A future that it awaits may be cancelled by anybody. Passed on, that would end the member as a stop does.
        # A thread of the sink that asks whether it is cancelled (`anyio.from_thread`) raises this while the task is
        # not cancelled yet, since that waits for the thread; but the scope around both is.
        ours = (task := asyncio.current_task()) is None or task.cancelling()
        if ours or anyio.current_effective_deadline() == -math.inf:
            raise
        raise SinkError(f"sink {name}: {raised(error)}: something that it awaited was cancelled") from error
