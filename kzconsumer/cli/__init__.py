"""The command line. The names below are the interface for authors of commands."""

from kzconsumer.cli.configuration import add_config, load_settings

__all__ = ["add_config", "load_settings"]
