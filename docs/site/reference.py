"""The reference pages, generated from the settings file, the parsers, the docstrings and the log calls.

Each function returns one page of Markdown; `pages` calls them at every build.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import re
import sys
import textwrap
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import get_args, get_type_hints

import msgspec

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

import kzconsumer  # noqa: E402
from kzconsumer.cli.main import whole_parser  # noqa: E402
from kzconsumer.service.stop_and_reload import LIVE  # noqa: E402
from kzconsumer_tools.groups.advice import ADVICE  # noqa: E402

_KEY = re.compile(r"^#?([a-z_]+) = ")


def settings() -> str:
    """From the reference file; a test compares it with the code."""
    page = [
        "# Settings",
        "Generated from [config/group.reference.toml](../config/group.reference.toml). SIGHUP applies *live* settings "
        "to a running member ([more](configuration.md#changing-a-running-member)). The value shown is the default, or "
        "an example if the setting has no default.",
    ]
    table, comment = "", list[str]()
    for line in [*(ROOT / "config" / "group.reference.toml").read_text().splitlines(), ""]:
        if heading := re.match(r"^\[([a-z.]+)\]$", line):
            table = heading[1]
            page += [f"## [{table}]", *_prose(comment)]
            comment = []
        elif key := _KEY.match(line):
            live = " *live*" if (table, key[1]) in LIVE else ""
            place = "__".join(["KZCONSUMER", *table.upper().split("."), key[1].upper()])
            page += [f"### {key[1]}{live} {{ #{table.replace('.', '-')}-{key[1]} }}", f"```toml\n{line}\n```"]
            page += [*_prose(comment), f"Variable: `{place}`"]
            comment = []
        elif line.startswith("#"):
            comment.append(line.removeprefix("#").removeprefix(" "))
        elif comment and not table:
            page += _prose(comment)
            comment = []
    return "\n\n".join(page) + "\n"


def _prose(comment: list[str]) -> Iterator[str]:
    """Paragraphs; indented lines are tables or code and are kept as they are."""
    block, indented = list[str](), False
    for line in [*comment, ""]:
        if block and (not line or line.startswith("  ") != indented):
            yield "```text\n" + "\n".join(block) + "\n```" if indented else _escaped(" ".join(block))
            block = []
        if line:
            indented = line.startswith("  ")
            block.append(line)


def command_line() -> str:
    parser = whole_parser()
    page = [
        "# Command line",
        "Generated from the parsers, as are `kzconsumer manual`, `kzconsumer completion` and `--help`.",
        *_command(parser, "kzconsumer", 2),
    ]
    return "\n\n".join(page) + "\n"


def _command(parser: argparse.ArgumentParser, name: str, level: int) -> Iterator[str]:
    yield f"{'#' * level} {name}"
    if parser.description:
        yield _escaped(parser.description)
    usage = " ".join(parser.format_usage().removeprefix("usage: ").split())
    yield "```text\n" + textwrap.fill(usage, 84, subsequent_indent=" " * (len(name) + 1)) + "\n```"
    rows = [
        f"| {_invocation(action)} | {_escaped(_help(parser, action)).replace('|', chr(92) + '|')} |"
        for action in parser._actions
        if not isinstance(action, argparse._SubParsersAction | argparse._HelpAction)
        and action.help != argparse.SUPPRESS
    ]
    if rows:
        yield "\n".join(["| | |", "|---|---|", *rows])
    if parser.epilog:
        yield _escaped(parser.epilog)
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for word, inner in action.choices.items():
                yield from _command(inner, f"{name} {word}", min(level + 1, 4))


def _invocation(action: argparse.Action) -> str:
    value = action.metavar or ("" if action.nargs == 0 else action.dest.upper())
    value = " ".join(value) if isinstance(value, tuple) else value
    words = [f"{option} {value}".strip() for option in action.option_strings] or [value]
    return ", ".join(f"`{word}`" for word in words)


def _help(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    return parser._get_formatter()._expand_help(action) if action.help else ""


_IN_ORDER = {
    "Consume": ("connect", "ConsumerConnector", "KafkaStream", "Message"),
    "Partitions and positions": ("TopicPartition", "Position", "RebalanceListener"),
    "Settings": ("Settings", "Include", "Exclude"),
    "Rejected records": ("Rejected", "RecordsRejectedError", "RecordRejectedError"),
}
"""The public names that a program begins with; all others are errors."""


def python_api() -> str:
    """Every public name, from the module that defines it."""
    home = kzconsumer._HOME
    shown = {name for names in _IN_ORDER.values() for name in names}
    errors = ("KzConsumerError", *sorted(home.keys() - shown - {"KzConsumerError"}))
    page = [
        "# Python",
        "The public names of `kzconsumer`, from their docstrings. Complete programs: [From Python](python.md).",
    ]
    for heading, names in {**_IN_ORDER, "Errors": errors}.items():
        page += [f"## {heading}", *(_described(home[name], name) for name in names)]
    return "\n\n".join(page) + "\n"


def _described(home: str, name: str) -> str:
    """Plain fields, whose names say it all, are shown of what has few others."""
    place = "records._native" if name == "Message" else home
    fields = "" if name == "Settings" else "\n    options:\n      show_if_no_docstring: true"
    return f"::: kzconsumer.{place}.{name}{fields}"


def plugin_api() -> str:
    """The names that plugins may import, by module; each is described once."""
    page = ["# Plugin interfaces", "From the docstrings. Complete examples: [Write a plugin](plugins.md)."]
    described = dict.fromkeys(kzconsumer.__all__, "[Python](python-api.md)")
    for name in ("assignors", "sinks", "settings", "cli", "testing", "errors", "model", "clock", "durable_files"):
        module = importlib.import_module(f"kzconsumer.{name}")
        names = getattr(module, "__all__", None) or [
            each
            for each, value in vars(module).items()
            if each[0] != "_" and getattr(value, "__module__", None) == module.__name__
        ]
        elsewhere = [f"`{each}` ({described[each]})" for each in names if each in described]
        page += [f"## kzconsumer.{name}"]
        page += [f"Described elsewhere: {', '.join(elsewhere)}."] if elsewhere else []
        page += [f"::: {module.__name__}.{each}" for each in names if each not in described]
        described |= {each: f"`kzconsumer.{name}`" for each in names if each not in described}
    return "\n\n".join(page) + "\n"


RESULTS = {
    "lag": "groups.group_lag:GroupLag",
    "groups list": "groups.group_lag:GroupSummary",
    "groups describe": "groups.group_description:GroupDescription",
    "groups doctor": "groups.advice:Examined",
    "groups plan": "groups.group_description:AssignmentPreview",
    "groups move": "offsets.move_rules:MovedGroup",
    "groups clean, delete, restore": "groups.diagnosis:RepairResult",
    "offsets show": "offsets.stored_offsets:GroupOffsets",
    "offsets reset, import, clone": "offsets.offset_changes:ChangedOffsets",
    "cluster describe": "cluster.description:ClusterDescription",
    "topics list, describe": "cluster.description:TopicDescription",
    "topics reassign": "cluster.requests:Reassigned",
    "topics elect-preferred": "cluster.requests:Elected",
    "topics delete": "cluster.requests:Deleted",
    "topics config set": "cluster.requests:Configured",
    "sink verify": "proof:Proof",
    "sink replay": "replay:Replayed",
}
"""Commands, and the type of what `-o json` prints; of a list, that of its items."""


def json_results() -> str:
    page = [
        "# JSON of the commands",
        "Generated from the types: the fields of `-o json`. `None` is null, a tuple a list.",
    ]
    for command, place in RESULTS.items():
        module, _, name = place.partition(":")
        page.append(f"## kzconsumer {command}")
        page += _fields(getattr(importlib.import_module(f"kzconsumer_tools.{module}"), name), "")
        if command == "groups doctor":
            page.append(
                "\n".join(
                    [
                        "| kind | |",
                        "|---|---|",
                        *(f"| `{kind}` | {_escaped(advice.title)} |" for kind, advice in sorted(ADVICE.items())),
                    ]
                )
            )
    return "\n\n".join(page) + "\n"


def _fields(struct: type, of: str) -> Iterator[str]:
    """One type and, after it, those of its fields; the types are as in the source."""
    if of:
        yield f"**{of}**"
    if struct.__doc__:
        yield _escaped(" ".join(struct.__doc__.split()))
    yield "\n".join(f"- `{name}`: `{kind}`" for name, kind in struct.__annotations__.items())
    for name, hint in get_type_hints(struct).items():
        for inner in (hint, *get_args(hint)):
            if isinstance(inner, type) and issubclass(inner, msgspec.Struct):
                yield from _fields(inner, f"{of}.{name}".removeprefix("."))


def log_events() -> str:
    """Every log call in the source. Fields that a call passes as another mapping are missing."""
    found: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    sources = [*(ROOT / "kzconsumer").rglob("*.py"), *(ROOT / "plugins").glob("*/kzconsumer_*/**/*.py")]
    for path in sources:
        for call in ast.walk(ast.parse(path.read_text())):
            match call:
                case ast.Call(
                    func=ast.Attribute(attr="debug" | "info" | "warning" | "error" as level, value=logger),
                    args=[ast.Constant(value=str(event)), *_],
                    keywords=keywords,
                ) if ast.unparse(logger).lstrip("_").endswith("log"):
                    fields = {each.arg for each in keywords if each.arg}
                    if any(ast.unparse(each.value).endswith("partition._asdict()") for each in keywords):
                        fields |= {"topic", "partition"}
                    found[event, level] |= fields - {"again"}  # marks repeats, not logged
    page = [
        "# Log events",
        "Generated from the log calls in the source: the `event` of a line, its `level` and its own fields. "
        "Fields that every line has: [Logs](service.md#logs). What to do about a warning or an error: "
        "[Troubleshooting](troubleshooting.md).",
        "\n".join(
            [
                "| event | level | fields |",
                "|---|---|---|",
                *(
                    f"| {_escaped(event)} | {level} | {', '.join(f'`{field}`' for field in sorted(fields))} |"
                    for (event, level), fields in sorted(found.items())
                ),
            ]
        ),
    ]
    return "\n\n".join(page) + "\n"


def _escaped(text: str) -> str:
    """Text with Markdown characters escaped, except in backquotes."""
    return re.sub(r"([*_<>\[\]])(?=[^`]*(?:`[^`]*`[^`]*)*$)", r"\\\1", text)
