"""The group's file as frozen structs. Read `sections` first; the names below are for plugins.

- Which value counts: `layers` (defaults, files, environment, flags). As one struct: `settings`.
- How one is read: `tables`, `values`; `bounded_match`: expressions that others write.
"""

from kzconsumer.display import redacted, redacted_text
from kzconsumer.settings.layers import read_secret
from kzconsumer.settings.tables import (
    ByteSize,
    Duration,
    PositiveDuration,
    nearest,
    read_byte_size,
    read_duration,
    read_table,
    reader,
)

__all__ = [
    "ByteSize",
    "Duration",
    "PositiveDuration",
    "nearest",
    "read_byte_size",
    "read_duration",
    "read_secret",
    "read_table",
    "reader",
    "redacted",
    "redacted_text",
]
