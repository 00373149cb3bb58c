"""Errors of the sandbox and the demo; the command line prints their text as it is, so it says what to do."""

from __future__ import annotations

from kzconsumer.errors import KzConsumerError


class SandboxError(KzConsumerError):
    """No Java, no jars, a server that does not start, or a sandbox that already runs."""


class DemoFailed(KzConsumerError):
    """A member stopped, there is no progress, or Spark could not count."""
