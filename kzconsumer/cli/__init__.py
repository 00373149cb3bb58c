"""The command line. Read `main` (`--help`, exit statuses), then `verbs`, which declares those of this distribution.

`arguments`: how arguments are parsed and refused, what verbs share (`--config`, `--set`, progress), standard streams.
`checks`: all faults of a configuration that need no server. The names below are for authors of commands.
"""

from kzconsumer.cli.arguments import add_config, load_settings

__all__ = ["add_config", "load_settings"]
