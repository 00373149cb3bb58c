"""What verbs of the command line share: parsers, the arguments of a configuration, progress, the standard streams.

An error is one line that suggests the nearest choice.
"""

from __future__ import annotations

import argparse
import codecs
import io
import os
import re
import shutil
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NoReturn

from kzconsumer.clock import now
from kzconsumer.display import count, rate, span
from kzconsumer.errors import OutputError

if TYPE_CHECKING:
    from kzconsumer.settings.layers import Layers
    from kzconsumer.settings.settings import Settings


EXIT_USAGE = 2


class Parser(argparse.ArgumentParser):
    """`examples` are arguments after the verb. argparse makes the parsers of verbs and actions from this class.

    A verb that needs an action and is given nothing prints its help.
    """

    def __init__(self, *args: Any, examples: Sequence[str] = (), **kwargs: Any) -> None:
        kwargs.setdefault("formatter_class", _Help)
        super().__init__(*args, **kwargs)
        self.register("action", "parsers", _Verbs)
        self._examples = examples
        self._words: list[str] = []

    @property
    def examples(self) -> list[str]:
        """Complete commands; of a verb with actions the first one of each."""
        of_actions = [line for each in inner_parsers(self) if isinstance(each, Parser) for line in each.examples[:1]]
        return [f"{self.prog} {each}".rstrip() for each in self._examples] or of_actions

    def format_help(self) -> str:
        lines = ["\nexamples:", *map(_continued, self.examples)] if self.examples else []
        return super().format_help() + "\n  ".join(lines) + "\n" * bool(lines)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        if args == [] and any(isinstance(each, argparse._SubParsersAction) for each in self._actions if each.required):
            self.print_help(sys.stderr)
            self.exit(EXIT_USAGE)
        self._words = list(sys.argv[1:] if args is None else args)
        return super().parse_known_args(args, namespace)

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """argparse would refuse what is left over in the name of the whole program: the verb's help has the options."""
        found, left = self.parse_known_args(args, namespace)
        if left:
            verb = _parser_in_use(self, found)
            verb.error(f"unrecognized arguments: {' '.join(left)}{_hint(verb, left[0])}")
        return found

    def error(self, message: str) -> NoReturn:
        """Of an option that is missing and one that is unknown, the unknown one is reported: it is the one mistyped."""
        if message.endswith(" is required") or " are required: " in message:
            unknown = next(filter(self._is_unknown, self._words), None)
            message = message if unknown is None else f"unrecognized arguments: {unknown}{_hint(self, unknown)}"
        message += self._dashed(message)
        self.exit(EXIT_USAGE, f"{self.prog}: error: {message}; see {self.prog} --help\n")

    def _dashed(self, message: str) -> str:
        """What to do about a value that begins with a dash, as a group's name may: argparse takes it for an option."""
        missing = re.match(r"argument (\S+): expected one argument$", message)
        named = missing[1].split("/") if missing is not None else []
        for option, value in pairwise(self._words):
            is_value = value.startswith("-") and value not in self._option_string_actions
            if option in named and option.startswith("--") and is_value:
                return f"; give it as {option}={value}"
        return ""

    def _is_unknown(self, word: str) -> bool:
        """Options may be abbreviated."""
        name = word.partition("=")[0]
        return name.startswith("--") and not any(each.startswith(name) for each in self._option_string_actions)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            from kzconsumer.settings.table_reader import nearest

            near = nearest(str(value), map(str, action.choices or ()))
            if near is not None:
                error.message += f"; did you mean {near!r}"
            raise


def _parser_in_use(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> argparse.ArgumentParser:
    """That of the verb, or of its action."""
    for each in parser._actions:
        if isinstance(each, argparse._SubParsersAction):
            return _parser_in_use(each.choices[getattr(arguments, each.dest)], arguments)
    return parser


def _hint(parser: argparse.ArgumentParser, word: str) -> str:
    """The option nearest to a word that is none: `-o json` for `--json`; `--group` is an argument, not an option."""
    from kzconsumer.settings.table_reader import nearest

    if not word.startswith("-"):
        return ""
    name, value = word.partition("=")[0], word.lstrip("-")
    bare = name.lstrip("-")
    if any(bare.upper() == each.metavar for each in parser._get_positional_actions()):
        return f"; {bare.upper()} is given without {name}"
    valued = (
        f"{each.option_strings[0]} {value}"
        for each in parser._actions
        if each.option_strings and value in (each.choices or ())
    )
    options = {each.lstrip("-"): each for each in parser._option_string_actions}  # dashes make no word nearer
    near = next(valued, None) or options.get(nearest(bare, options) or "")
    return f"; did you mean {near}" if near else ""


def _wrap(text: str, width: int) -> list[str]:
    """Broken at spaces only; a NUL is a space that is kept."""
    lines = textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)
    return [line.replace("\0", " ") for line in lines]


def _continued(command: str) -> str:
    """A command that is wider than the terminal on several lines, which a shell joins."""
    with_values = re.sub(r"( --?[\w-]+) (?!-)", r"\1\0", command)
    return " \\\n      ".join(_wrap(with_values, shutil.get_terminal_size().columns - 8))


class _Help(argparse.HelpFormatter):
    """Without the line of a placeholder above the verbs."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        """A path is not broken, so that it can be copied."""
        return textwrap.wrap(" ".join(text.split()), width, break_long_words=False)

    def _format_usage(self, *arguments: Any) -> str:
        """Before Python 3.13 argparse keeps options that exclude each other on one line, however long that is."""
        return "".join(map(self._broken, super()._format_usage(*arguments).splitlines(keepends=True)))

    def _broken(self, line: str) -> str:
        text = line.strip()
        if len(line) <= self._width + 1 or "\x1b" in line:  # colours are of a Python that breaks such lines
            return line
        indent = line[: line.index(text)]
        return (
            indent + f"\n{indent} ".join(_wrap(re.sub(r"(?<!\|) ", "\0", text), self._width - len(indent) - 1)) + "\n"
        )

    def _format_action(self, action: argparse.Action) -> str:
        if isinstance(action, argparse._SubParsersAction):
            return "".join(map(super()._format_action, action._get_subactions()))
        return super()._format_action(action)


class _Verbs(argparse._SubParsersAction):  # type: ignore[type-arg]  # it has none at run time
    """Without a description of its own, a verb's help begins with its line in the list of verbs."""

    def add_parser(self, name: str, **kwargs: Any) -> Any:
        if line := kwargs.get("help"):
            kwargs.setdefault("description", f"{line[0].upper()}{line[1:]}.")
        return super().add_parser(name, **kwargs)


def whole_number(what: str, least: int = 0, most: float = float("inf")) -> Callable[[str], int]:
    """An argument type; `what` is the end of the error message `'x' is not ...`."""

    def read(text: str) -> int:
        if not (text.isascii() and text.isdecimal() and least <= int(text) <= most):
            raise argparse.ArgumentTypeError(f"{text!r} is not {what}")
        return int(text)

    return read


def seconds(text: str) -> float:
    """An argument type: from a tenth of a second to a day."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0.1 <= number <= 86_400:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return number


def inner_parsers(parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    """Those of its verbs or actions."""
    actions = [each for each in parser._actions if isinstance(each, argparse._SubParsersAction)]
    return [inner for each in actions for inner in each.choices.values()]


def every_parser(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """The parser, and those of its verbs and their actions."""
    yield parser
    for inner in inner_parsers(parser):
        yield from every_parser(inner)


# FILE, `--config` and `--set` name a group's configuration.


def add_configuration(parser: argparse.ArgumentParser) -> None:
    """FILE or `--config FILE`, and `--set`."""
    file = parser.add_mutually_exclusive_group()
    file.add_argument("config", metavar="FILE", nargs="?", default=argparse.SUPPRESS, help="the group's TOML file")
    file.add_argument("--config", metavar="FILE", default=argparse.SUPPRESS, help="the same")
    add_set(parser, "flags_of_verb")
    parser.set_defaults(misused=parser.error)


def add_config(parser: argparse.ArgumentParser, description: str = "the group's TOML file") -> None:
    """Let a command's parser accept `--config FILE` and `--set`, which are always accepted before the verb."""
    parser.add_argument("--config", metavar="FILE", default=argparse.SUPPRESS, help=description)
    add_set(parser, "flags_of_verb")
    parser.set_defaults(misused=parser.error)


def add_set(parser: argparse.ArgumentParser, into: str) -> None:
    """`--set`, before or after the verb; each has a list of its own, since argparse would drop one."""
    parser.add_argument(
        "--set",
        metavar="TABLE.KEY=VALUE",
        action="append",
        dest=into,
        default=[],
        help="overrides files and environment; the value is TOML, or else text; may be repeated",
    )


def load_settings(arguments: argparse.Namespace) -> Settings:
    """The settings that the command line names: `--config FILE`, its drop-ins, the environment and every `--set`.

    Raises ConfigError; exits with a usage message if no file is given.
    """
    from kzconsumer.settings.settings import Settings

    return Settings.of(layers_given(arguments))


def layers_given(arguments: argparse.Namespace) -> Layers:
    """Raises ConfigError; exits with a usage message if no file is given."""
    from kzconsumer.settings.settings import layers_of

    if arguments.config is None:
        arguments.misused("no configuration file given; give --config FILE")
    return layers_of(arguments.config, flags_given(arguments))


def flags_given(arguments: argparse.Namespace) -> list[str]:
    return [*arguments.flags, *arguments.flags_of_verb]


# What takes long shows its progress on standard error: a bar on a terminal, elsewhere an occasional line.

# Seconds until the bar is shown, between its updates, and between two lines: an error about ZooKeeper comes before one.
AFTER, UPDATE, LINES = 2.0, 0.1, 20.0


class _Progress:
    def __init__(self, what: str) -> None:
        self.what = what
        self.done = 0
        self.total: int | None = None
        self.ended = threading.Event()
        self._began, self._before = now(), 0

    def show(self, done: int, total: int) -> None:
        if self.total is None:
            self._before = done  # of an earlier start, for the rate
        self.done, self.total = done, total

    @property
    def figures(self) -> str:
        took = now() - self._began
        if self.total is None:
            return span(took // 1)
        per_second = (self.done - self._before) / took if took else None
        return f"{count(self.done)} of {count(self.total)}, {rate(per_second)}"

    def lines(self) -> None:
        while not self.ended.wait(LINES):
            print(f"kzconsumer: {self.what}: {self.figures}", file=sys.stderr, flush=True)

    def bar(self) -> None:
        if self.ended.wait(AFTER):
            return
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[figures]}"))
        # Standard output is for the result.
        console = Console(stderr=True)
        with Progress(*columns, TimeRemainingColumn(), console=console, transient=True, redirect_stdout=False) as bars:
            row = bars.add_task(self.what, total=None, figures=self.figures)
            while not self.ended.wait(UPDATE):
                bars.update(row, completed=self.done, total=self.total, figures=self.figures)


@contextmanager
def progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """Shows `what`, with the time that it has taken, or what the yielded callback was given: amount done, and total."""
    shown = _Progress(what)
    terminal = sys.stderr.isatty() and find_spec("rich") is not None
    thread = threading.Thread(target=shown.bar if terminal else shown.lines, name="progress", daemon=True)
    thread.start()
    try:
        yield shown.show
    finally:
        shown.ended.set()
        thread.join()


# A result that cannot be written is an error with an exit status of its own. Standard output may be a full disk, closed
# (`>&-`), or a terminal that is not of UTF-8. Standard error that cannot be written loses its lines, and nothing else:
# a daemon's log may be on a full disk.

EXIT_OUTPUT = 74  # EX_IOERR of sysexits.h
_ESCAPED = "kzconsumer-escaped"


class _Output(io.FileIO):
    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise OutputError(f"standard output: {error.strerror}") from None


class _Errors(io.FileIO):
    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError:
            return len(data)


def install() -> None:
    """Replace the streams of the process, unless a test or a caller has put others in their place."""
    if sys.stdin is None:
        _occupy(0, os.O_RDONLY)
        sys.stdin = open(0, closefd=False)  # noqa: SIM115  (for the whole process)
    if sys.stdout is sys.__stdout__:
        if sys.stdout is None:
            # A socket must not become descriptor 1. Opened for reading, it cannot be written, as a closed one.
            _occupy(1, os.O_RDONLY)
        encoding = sys.stdout.encoding if sys.stdout is not None else "utf-8"
        raw = _Output(1, "wb", closefd=False)
        lines = raw.isatty()
        sys.stdout = io.TextIOWrapper(io.BufferedWriter(raw), encoding, _ESCAPED, line_buffering=lines)
    if sys.stderr is sys.__stderr__:
        if sys.stderr is None:
            _occupy(2, os.O_WRONLY)
        encoding = sys.stderr.encoding if sys.stderr is not None else "utf-8"
        errors = io.BufferedWriter(_Errors(2, "wb", closefd=False))
        sys.stderr = io.TextIOWrapper(errors, encoding, "backslashreplace", line_buffering=True)


def abandon_output() -> None:
    """What is written from now on, and what is still buffered, is dropped: the flush at the end must not fail too."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, sys.stdout.fileno())
    os.close(nothing)
    sys.stdout.flush()


def _occupy(descriptor: int, flags: int) -> None:
    opened = os.open(os.devnull, flags)
    if opened != descriptor:
        os.dup2(opened, descriptor)
        os.close(opened)


def _escape(error: UnicodeError) -> tuple[str | bytes, int]:
    """What the encoding does not have as `\\uXXXX`, which in JSON means the same; undecodable bytes as they were."""
    assert isinstance(error, UnicodeEncodeError)
    made = b""
    for each in error.object[error.start : error.end]:
        number = ord(each)
        if 0xDC80 <= number <= 0xDCFF:
            made += bytes([number - 0xDC00])
        elif each == "…":
            made += b"..."
        else:
            units = each.encode("utf-16-be", "surrogatepass").hex()
            made += b"".join(b"\\u" + units[n : n + 4].encode() for n in range(0, len(units), 4))
    return made, error.end


codecs.register_error(_ESCAPED, _escape)
