"""The group's file as frozen structs. Read `sections` first; the names below are for plugins.

- `sections`: the keys, their defaults and bounds. Which value counts: `layers` (defaults, files, environment, flags;
  also secrets in files, and what is not TOML). As one struct, and as it is shown: `settings`.
- How a table is read, durations and sizes too, and what is said of a fault: `table_reader`. Values that need more than
  a type and bounds (addresses, topics, times): `value_readers`. `bounded_match`: expressions that others write.
"""

from kzconsumer.display import redacted, redacted_text
from kzconsumer.settings.layers import read_secret
from kzconsumer.settings.table_reader import (
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
