"""The command line. Read `main` (which verb runs, `--help`, exit statuses, the limit of open files), then `verbs`.

`verbs`: `kzconsumer run`, `check-config` and `kzconsumer plugins`. `checks`: all faults of a configuration that need no
server. `arguments`: how arguments and their values are parsed and refused, what verbs share (`--config`, `--set`,
progress), standard streams. The names below are for authors of commands.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kzconsumer.cli.arguments import add_config, load_settings

__all__ = ["add_config", "load_settings"]


def __getattr__(name: str) -> object:
    # Imported when first used: until `main.main` has begun, Ctrl-C shows a traceback.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from kzconsumer.cli import arguments

    return getattr(arguments, name)
