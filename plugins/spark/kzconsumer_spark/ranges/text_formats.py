"""Options of Spark's writers of text, without which they would change values. `write_options` override them."""

from __future__ import annotations

from typing import Final

#: Spark would write whole milliseconds; and in a zone of long ago, whose offset has seconds, whole minutes of that.
TIMES: Final = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss[.SSSSSS][XXX]",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss[.SSSSSS]",
    "timeZone": "UTC",
}
#: By format. CSV would lose the blanks around a text.
OPTIONS: Final[dict[str, dict[str, str]]] = {
    "json": TIMES,
    "csv": TIMES | {"ignoreLeadingWhiteSpace": "false", "ignoreTrailingWhiteSpace": "false"},
}
