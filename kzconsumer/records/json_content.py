"""The bytes of a key, value or header as JSON."""

from __future__ import annotations

import base64
from typing import TypeAlias

Content: TypeAlias = "str | dict[str, str] | None"
"""Text if valid UTF-8, else `{"base64": ...}`; null stays null."""


def content(raw: bytes | None) -> Content:
    if raw is None:
        return None
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(raw).decode()}
