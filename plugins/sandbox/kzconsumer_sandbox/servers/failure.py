"""Why a sandbox could not be had.

Raised by every module of this package; the command line prints the text as it is, so the text says what to do.
"""

from __future__ import annotations

from kzconsumer.errors import KzConsumerError


class SandboxError(KzConsumerError):
    """No Java, no jars, a server that does not start, or a sandbox that already runs."""
