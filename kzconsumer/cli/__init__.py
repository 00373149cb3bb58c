"""The command line. Read `main` (`--help`, exit statuses), then `verbs`, which declares those of this distribution.

`arguments` parses, and says what was meant. The names below are for authors of commands.
"""

from kzconsumer.cli.arguments import add_config, load_settings

__all__ = ["add_config", "load_settings"]
