"""What a sink raises becomes SinkFailed, with the sink's name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kzconsumer.errors import KzConsumerError, SinkFailed, ZooKeeperError
from kzconsumer.sinks.steps import StepNotRecorded


@contextmanager
def sink_failures(name: str) -> Iterator[None]:
    """Errors of the package pass, except those of recording a step: then the write has failed."""
    try:
        yield
    except (StepNotRecorded, ZooKeeperError) as error:
        raise SinkFailed(f"sink {name}: {error}") from error
    except KzConsumerError:
        raise
    except Exception as error:
        raise SinkFailed(f"sink {name}: {type(error).__name__}: {error}") from error
