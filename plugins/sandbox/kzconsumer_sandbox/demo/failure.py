"""Why the demo did not get to its end.

Raised by this package; the command line prints the text as it is.
"""

from __future__ import annotations

from kzconsumer.errors import KzConsumerError


class DemoFailed(KzConsumerError):
    """A member ended, nothing moves any more, or Spark could not count."""
