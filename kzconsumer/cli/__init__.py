"""The command line. Read `main` (parser, `--help`, exit statuses). The names below are for authors of commands."""

from kzconsumer.cli.arguments import add_config, load_settings

__all__ = ["add_config", "load_settings"]
