"""Whether a batch failed for what is in its records: by the SQLSTATE of errors of Spark, the driver and the database.

Only what is known to be of the content counts: an outage, a full disk, a missing permission and a fault of the settings
never do.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

# Data exceptions, limits of the program (a value too large for an index), `raise_error` and the RAISE of a trigger.
_CONTENT: Final = ("22", "54", "P0001")
# Of the transaction that publishes. The staging table has a constraint of ours, which says nothing of the content.
_CONSTRAINTS: Final = ("23",)
_LONGEST_CHAIN: Final = 30


def refuses_content(error: BaseException) -> bool:
    return any(state.startswith(_CONTENT) for state in _java_states(error)) or any(
        state.startswith((*_CONTENT, *_CONSTRAINTS)) for state in _database_states(error)
    )


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def _database_states(error: BaseException) -> Iterator[str]:
    for each in _chain(error):
        state = getattr(each, "sqlstate", None)  # psycopg's
        if isinstance(state, str):
            yield state


def _java_states(error: BaseException) -> Iterator[str]:
    for each in _chain(error):
        throwable: Any = getattr(each, "java_exception", None) or getattr(each, "_origin", None)
        for _ in range(_LONGEST_CHAIN):
            if throwable is None:
                break
            for method in ("getSqlState", "getSQLState"):  # of SparkThrowable, of java.sql.SQLException
                try:
                    state = getattr(throwable, method)()
                except Exception:
                    continue  # it has no such method
                if isinstance(state, str):
                    yield state
            throwable = throwable.getCause()
