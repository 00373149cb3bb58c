"""What may be shown of a value that somebody wrote: never a secret, by the name of its key or the form of its text.

Pure. Ours are files' and variables' names throughout; this is for what plugins and their users bring, and for what is
pasted where a name belongs. Whatever is told passes here: `errors` for faults, `log` for lines, `status` for settings.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

HIDDEN = "(hidden)"

_SECRET = re.compile(r"passw|secret|token|credential|access.?key|api.?key|private.?key|account.?key", re.IGNORECASE)
_NAMES_ONE = re.compile(r"_(file|env)$")
# A password may hold "/" and "@", though it should not: up to the last "@", rather too much than too little.
_IN_TEXT = re.compile(
    r"(?<=://)\S+(?=@)|(?i:(?<=password=)|(?<=secret=)|(?<=token=))[^&;\s]+"
    r"|(?s:-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*-----|\Z))"
)


def is_secret(name: str) -> bool:
    """Whether a key of that name holds a secret; not when it names a file or a variable that does."""
    return _SECRET.search(name) is not None and _NAMES_ONE.search(name) is None


def redacted(value: Any) -> Any:
    """The same value, in it HIDDEN for what is secret: by the names in tables, and in URLs."""
    match value:
        case Mapping():
            return {name: HIDDEN if is_secret(str(name)) else redacted(inner) for name, inner in value.items()}
        case list() | tuple():
            return [redacted(inner) for inner in value]
        case str():
            return redacted_text(value)
    return value


def redacted_text(text: str) -> str:
    """The same text, in it HIDDEN for users and passwords of URLs, what follows `password=` or its like, and private
    keys."""
    return _IN_TEXT.sub(HIDDEN, text)
