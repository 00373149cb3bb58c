"""`kzconsumer top`: the status of running daemons (`[status] listen`) in a terminal; and `kzconsumer exporter`."""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kzconsumer.cli.arguments import seconds
from kzconsumer.errors import ConfigError
from kzconsumer.settings.value_readers import is_local, read_listen
from kzconsumer_tools.commands.cluster_option import add_cluster_option, cluster_settings, group_name
from kzconsumer_tools.commands.output_and_options import EXIT_UNHEALTHY, add_group_names, wanted_groups

if TYPE_CHECKING:
    from argparse import _SubParsersAction
    from collections.abc import Iterator, Sequence

    from kzconsumer_tools.exporter.exporter import Exporter
    from kzconsumer_tools.top_feed import Address, DaemonFeed


#: Seconds between two updates of the screen.
PAUSE = 0.5


def add_top(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    top = subparsers.add_parser(
        "top",
        help="show the status of running daemons, or of any group, in a terminal",
        description="Show running daemons that serve their status, or with --of any group, worst partitions first, "
        "until q. Changes nothing. Exit status with --once: 3 unless all daemons are reached and healthy.",
        examples=("127.0.0.1:9308 127.0.0.1:9309", "--group-file orders.toml --once", "--of orders --context prod"),
    )
    top.add_argument("address", metavar="ADDRESS", nargs="*", help="127.0.0.1:9308, or unix:/path of a socket")
    top.add_argument(
        "--group-file",
        metavar="FILE",
        action="append",
        default=[],
        help="a group's TOML file: its [status]",
    )
    top.add_argument("--token-file", metavar="FILE", help="the token of the daemons at ADDRESS")
    top.add_argument(
        "--group", action="store_true", help="show every partition of the group, also those of other members"
    )
    top.add_argument(
        "--of",
        metavar="GROUP",
        action="append",
        type=group_name,
        default=[],
        help="a group with any members, read from the cluster; may be repeated",
    )
    add_cluster_option(top, output=False)
    top.add_argument("--once", action="store_true", help="print once, when every daemon has answered or failed")
    top.set_defaults(run=run_top)


def run_top(arguments: argparse.Namespace) -> int:
    import anyio

    from kzconsumer_tools.top_feed import DaemonFeed

    of_daemons = [*arguments.address, *arguments.group_file]
    if not of_daemons and not arguments.of:
        arguments.misused("give ADDRESS or --group-file FILE, or --of GROUP")
    if arguments.group and not of_daemons:
        arguments.misused("--group is of daemons; --of GROUP shows every partition")
    if arguments.token_file is not None and not arguments.address:
        arguments.misused("--token-file is of the daemons at ADDRESS; give one too")
    if not arguments.of and (arguments.zookeeper, arguments.context, arguments.config) != (None, None, None):
        arguments.misused("--zookeeper, --config and --context name the cluster of --of GROUP; give it too")
    daemons = [DaemonFeed(each, group=arguments.group) for each in _addresses(arguments)]
    if arguments.of:
        from kzconsumer.logs.setup import configure
        from kzconsumer_tools.exporter.group_feed import GroupFeed

        configure("critical", "line")  # the screen says what fails
        settings = cluster_settings(arguments)
        daemons += [GroupFeed(settings, group) for group in dict.fromkeys(arguments.of)]
    once = arguments.once or not sys.stdout.isatty()
    return anyio.run(_once if once else _live, daemons)


def _addresses(arguments: argparse.Namespace) -> list[Address]:
    from kzconsumer.settings.settings import Settings, layers_of
    from kzconsumer.status.access import load_token
    from kzconsumer_tools.top_feed import Address, read_address

    faults: list[str] = []
    token = _token(arguments, faults)
    found: list[Address] = []
    for text in arguments.address:
        try:
            found.append(Address(read_address(text), token))
        except ValueError as error:
            faults.append(f"ADDRESS: {text!r} {error}; a group is shown with --of GROUP")
    for file in arguments.group_file:
        settings = Settings.of(layers_of(file, []))
        if settings.status.listen is None:
            faults.append(f"{file}: [status] listen is not set: its daemon does not serve its status")
        else:
            found.append(Address(settings.status.listen, load_token(settings.status, settings.source)))
    if faults:
        raise ConfigError(faults)
    return found


def _token(arguments: argparse.Namespace, faults: list[str]) -> bytes | None:
    """That of `--token-file`; None without one, or after adding a line to `faults`."""
    from kzconsumer.settings.layers import read_secret_file

    return arguments.token_file and read_secret_file(arguments.token_file, "--token-file", faults)


async def _once(daemons: Sequence[DaemonFeed]) -> int:
    import anyio
    from rich.console import Console

    from kzconsumer_tools.tables.top_screen import picture

    async with anyio.create_task_group() as tasks:
        for each in daemons:
            tasks.start_soon(each.run)
        for each in daemons:
            await each.answered.wait()
        tasks.cancel_scope.cancel()
    console = Console(highlight=False)
    console.print(picture(daemons, height=10**6, width=console.width))
    return 0 if all(each.healthy for each in daemons) else EXIT_UNHEALTHY


async def _live(daemons: Sequence[DaemonFeed]) -> int:
    import signal

    import anyio
    from rich.console import Console
    from rich.live import Live

    from kzconsumer_tools.tables.top_screen import View, picture

    console, view = Console(highlight=False), View()
    with _single_keys(), Live(console=console, screen=True, auto_refresh=False) as screen:

        def draw() -> None:
            screen.update(picture(daemons, console.height, console.width, view), refresh=True)

        async with anyio.create_task_group() as tasks:
            for each in daemons:
                tasks.start_soon(each.run)

            async def draw_again() -> None:
                while True:
                    draw()
                    await anyio.sleep(PAUSE)

            async def obey_keys() -> None:
                while not view.ended:
                    await anyio.wait_readable(sys.stdin)
                    typed = os.read(sys.stdin.fileno(), 1024)
                    view.press(typed.decode("utf-8", "ignore"))
                    if not typed:
                        return  # the terminal is gone
                    draw()
                tasks.cancel_scope.cancel()

            tasks.start_soon(draw_again)
            if sys.stdin.isatty():
                tasks.start_soon(obey_keys)
            with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
                async for _ in signals:
                    break
            tasks.cancel_scope.cancel()
    return 0


@contextmanager
def _single_keys() -> Iterator[None]:
    """The terminal passes each key on at once, and does not show it. Ctrl-C stays a signal."""
    import termios
    import tty

    if not sys.stdin.isatty():
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


# `kzconsumer exporter`: every group of a cluster, for Prometheus and for clients of Burrow.


def add_exporter(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "exporter",
        help="serve lag and status of every group for Prometheus, and Burrow's HTTP paths",
        description="Follow every group in ZooKeeper, with or without members of kzconsumer, until SIGTERM or SIGINT, "
        "and serve metrics (/metrics) and Burrow's paths (/v3/kafka). Changes nothing.",
        examples=("--zookeeper zk1:2181/kafka", "--context prod --cluster prod --listen 0.0.0.0:9309 --token-file t"),
    )
    parser.add_argument(
        "--listen",
        metavar="ADDRESS",
        type=_listen,
        default="127.0.0.1:9309",
        help="default: 127.0.0.1:9309; one that other machines reach needs a token",
    )
    parser.add_argument("--token-file", metavar="FILE", help="the token that requests must have")
    parser.add_argument(
        "--cluster", metavar="NAME", type=_cluster_name, default="kafka", help="its name in metrics and paths: kafka"
    )
    parser.add_argument("--interval", metavar="SECONDS", type=seconds, default=30.0, help="between readings: 30")
    parser.add_argument(
        "--stalled-after",
        metavar="SECONDS",
        type=seconds,
        default=300.0,
        help="a partition is stalled if it is behind and has not advanced for so long: 300",
    )
    parser.add_argument(
        "--kafka-groups",
        action="store_true",
        help="with the groups that brokers coordinate, of Kafka's newer consumers",
    )
    add_group_names(parser)
    add_cluster_option(parser, output=False)
    parser.set_defaults(run=run_exporter)


def _cluster_name(text: str) -> str:
    if not text or "/" in text:
        raise argparse.ArgumentTypeError(f"{text!r} is not a name for paths such as /v3/kafka/NAME")
    return text


def run_exporter(arguments: argparse.Namespace) -> int:
    import anyio

    from kzconsumer.logs.setup import configure
    from kzconsumer.status.access import load_token
    from kzconsumer_tools.exporter.exporter import Exporter

    settings = cluster_settings(arguments)
    faults: list[str] = []
    token = _token(arguments, faults)
    if faults:
        raise ConfigError(faults)
    if token is None:
        token = load_token(settings.status, settings.source)
    if token is None and not is_local(arguments.listen):
        arguments.misused(f"--listen {arguments.listen} is open to other machines; give --token-file FILE")
    configure(settings.log.level, settings.log.format)
    exporter = Exporter(
        settings,
        arguments.cluster,
        arguments.interval,
        arguments.stalled_after,
        kafka_groups=arguments.kafka_groups,
        wanted=wanted_groups(arguments),
    )
    anyio.run(_serve, exporter, arguments.listen, token)
    return 0


def _listen(text: str) -> str:
    try:
        return read_listen(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} {error}") from None


async def _serve(exporter: Exporter, listen: str, token: bytes | None) -> None:
    import signal

    import anyio

    from kzconsumer_tools.exporter.exporter_server import serving

    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with serving(exporter, listen, token):
            async for _ in signals:
                break
