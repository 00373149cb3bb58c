"""What a sink raises becomes SinkError, with the sink's name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kzconsumer.errors import KzConsumerError, SinkError, ZooKeeperError, raised
from kzconsumer.sinks.steps import StepNotRecordedError


@contextmanager
def sink_failures(name: str) -> Iterator[None]:
    """Errors of the package pass, except those of recording a step: then the write has failed."""
    try:
        yield
    except (StepNotRecordedError, ZooKeeperError) as error:
        raise SinkError(f"sink {name}: {error}") from error
    except KzConsumerError:
        raise
    except Exception as error:
        raise SinkError(f"sink {name}: {raised(error)}") from error
