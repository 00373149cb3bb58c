"""Hides secrets in values and texts that are shown: by the name of a key, or by the form of a text.

Our own settings only name files and variables; options of plugins and pasted text may hold the secret itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

HIDDEN = "(hidden)"

_SECRET = re.compile(r"passw|secret|token|credential|access.?key|api.?key|private.?key|account.?key", re.IGNORECASE)
_NAMES_ONE = re.compile(r"_(file|env)$")
# A password may hold "/" and "@", though it should not: up to the last "@", rather too much than too little. Before the
# "@" of an abfss URI is a container; `sig` is the signature of a shared access signature.
_IN_TEXT = re.compile(
    r"(?<=://)(?<!abfss://)\S+(?=@)|(?<=abfss://)[^\s@]*[:/]\S*(?=@)"
    r"|(?i:(?<=password=)|(?<=secret=)|(?<=token=)|(?<=[?&]sig=))[^&;\s]+"
    r"|(?i:(?<=\bbearer ))\S+|\beyJ[\w-]+\.[\w.-]+"
    r"|(?s:-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*-----|\Z))"
)


def is_secret(name: str) -> bool:
    """Whether a key of that name holds a secret itself, not the name of a file or variable."""
    return _SECRET.search(name) is not None and _NAMES_ONE.search(name) is None


def redacted(value: Any) -> Any:
    """The value with HIDDEN for secrets: values of keys with such names, and parts of texts."""
    match value:
        case Mapping():
            return {name: HIDDEN if is_secret(str(name)) else redacted(inner) for name, inner in value.items()}
        case list() | tuple():
            return [redacted(inner) for inner in value]
        case str():
            return redacted_text(value)
    return value


def redacted_text(text: str) -> str:
    """The text with HIDDEN for users and passwords of URLs, values after `password=` and the like,
    JSON Web Tokens and private keys.
    """
    return _IN_TEXT.sub(HIDDEN, text)
