"""The status page as one document, and the content security policy that allows just its own style and script."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib.resources import files
from typing import NamedTuple

#: Concatenated in this order.
SCRIPTS = ("words.js", "elements.js", "help.js", "sections.js", "charts.js", "events.js")


class Page(NamedTuple):
    html: str
    policy: str
    """For the header Content-Security-Policy."""


@cache
def page() -> Page:
    parts = files("kzconsumer.status") / "browser"
    html, style, *scripts = ((parts / name).read_text("utf-8") for name in ("page.html", "page.css", *SCRIPTS))
    script = "".join(scripts)
    html = html.replace("></style>", f">{style}</style>").replace("></script>", f">{script}</script>")
    return Page(html, _policy(style, script))


def _policy(style: str, script: str) -> str:
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src '{_digest(script)}'",
            f"style-src '{_digest(style)}'",
            "connect-src 'self'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
            "require-trusted-types-for 'script'",
            "trusted-types 'none'",
        )
    )


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
