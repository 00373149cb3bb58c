"""Bytes of a record as JSON has them.

Pure. Whoever writes records as lines calls it: the sink that prints, dead letters in files.
"""

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
