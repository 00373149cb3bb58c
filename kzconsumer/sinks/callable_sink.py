"""The sink `callable`: the user's own coroutine function, `async def f(batch)`.

There are no retries: when the function returns, the batch is durable; an error other than RecordsRejectedError stops
the member.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import Self

import msgspec

from kzconsumer.errors import SinkError, raised
from kzconsumer.settings.tables import read_table
from kzconsumer.sinks.function_reference import load_async_function
from kzconsumer.sinks.interface import Batch, RecordsRejectedError, SinkContext

_WHERE = "[sink.options]"


class CallableOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`function` is "module:function", an `async def` of one argument, the `Batch`."""

    function: str


class CallableSink:
    """Raises ConfigError if the function cannot be imported, is not async or cannot be called with one argument."""

    def __init__(self, options: Mapping[str, object], context: SinkContext) -> None:
        self._reference = read_table(options, CallableOptions, _WHERE).function
        where = f"{_WHERE} function"
        self._function: Callable[[Batch], Awaitable[None]] = load_async_function(self._reference, where, "batch")

    def __repr__(self) -> str:
        return f"CallableSink({self._reference})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    async def write(self, batch: Batch) -> None:
        try:
            await self._function(batch)
        except RecordsRejectedError:
            raise
        except Exception as error:
            raise SinkError(f"{self._reference} raised {raised(error)}") from error
