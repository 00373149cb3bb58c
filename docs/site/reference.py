"""The pages of the reference, from what they are about: settings, the command line, docstrings, calls that log.

Each function returns one page of Markdown. `pages` calls them at every build.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
import textwrap
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

import kzconsumer  # noqa: E402
from kzconsumer.cli.main import whole_parser  # noqa: E402
from kzconsumer.service.reload import LIVE  # noqa: E402

_KEY = re.compile(r"^#?([a-z_]+) = ")


def settings() -> str:
    """From the reference file, which a test holds to be what the code reads."""
    page = [
        "# Settings",
        "Made from [config/group.reference.toml](../config/group.reference.toml). *Live* are those that SIGHUP changes "
        "in a running member ([more](configuration.md#changing-a-running-member)); what is shown is the default, or "
        "an example of what has none.",
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
    """Paragraphs; what is indented is a table of words, or a program, and stays as it is."""
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
        "Made from the parsers, as `kzconsumer manual`, `kzconsumer completion` and every `--help` are.",
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


def python_api() -> str:
    """Every public name, where it is at home."""
    home = kzconsumer._HOME
    page = [
        "# Python",
        "What `import kzconsumer` gives, from the docstrings. Whole programs: [From Python](python.md).",
        *(f"::: kzconsumer.{home[name]}.{name}" for name in sorted(home, key=str.lower)),
    ]
    return "\n\n".join(page) + "\n"


def plugin_api() -> str:
    page = ["# Interfaces of plugins", "From the docstrings. How to write an assignor: [sticky](sticky-assignor.md)."]
    for title, modules in {
        "Assignors": ["kzconsumer.assignors.interface"],
        "Sinks": ["kzconsumer.sinks.interface", "kzconsumer.sinks.steps"],
        "Settings of a plugin": ["kzconsumer.settings.tables"],
        "Contracts to test by": ["kzconsumer.testing.assignor_contract", "kzconsumer.testing.sink_contract"],
    }.items():
        page += [f"## {title}", *(f"::: {module}" for module in modules)]
    return "\n\n".join(page) + "\n"


def log_events() -> str:
    """Every call that logs, found in the source. A field that is handed over as another mapping is not seen."""
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
                    found[event, level] |= fields - {"again"}  # a mark that `log` takes off
    page = [
        "# What is logged",
        "Made from the calls in the source: the `event` of a line, its `level`, and the fields that are its own. "
        "What else is in a line: [Logs](logs.md).",
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
    """Text that is none of Markdown, but for what is in backquotes."""
    return re.sub(r"([*_<>\[\]])(?=[^`]*(?:`[^`]*`[^`]*)*$)", r"\\\1", text)
