"""The core has no module that neither the library nor the daemon imports; a name of a module or class occurs once."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from importlib.metadata import entry_points
from pathlib import Path

import grimp

import kzconsumer

ROOT = Path(__file__).parents[3]

#: Interfaces of the core that only other distributions use.
FOR_OTHERS = {
    "kzconsumer.brokers.protocol.cluster_state",
    "kzconsumer.fetcher.range_account",
    "kzconsumer.fetcher.range_reader",
    "kzconsumer.own_files",
}


def test_library_and_daemon_reach_the_whole_core() -> None:
    graph = grimp.build_graph("kzconsumer", exclude_type_checking_imports=True)
    ours = [entry for group in ("assignors", "sinks") for entry in entry_points(group=f"kzconsumer.{group}")]
    roots = {getattr(kzconsumer, name).__module__ for name in kzconsumer.__all__ if not name.startswith("__")}
    roots |= {entry.module for entry in ours if entry.module.startswith("kzconsumer.")}
    roots |= {"kzconsumer.__main__", "kzconsumer.cli.verbs"}
    reached = roots.union(*(graph.find_upstream_modules(root) for root in roots))
    packages = {module for module in graph.modules if graph.find_children(module)}
    unreached = graph.modules - reached - packages
    assert {module for module in unreached if not module.startswith("kzconsumer.testing.")} <= FOR_OTHERS


def test_names_of_modules_and_classes_are_unique() -> None:
    """In all distributions: a search for a name finds one thing."""
    places = defaultdict[str, set[Path]](set)
    for file in (*ROOT.glob("kzconsumer/**/*.py"), *ROOT.glob("plugins/*/kzconsumer_*/**/*.py")):
        if not file.stem.startswith("__"):
            places[file.stem].add(file)
        for each in ast.parse(file.read_bytes()).body:
            if isinstance(each, ast.ClassDef):
                places[f"class {each.name}"].add(file)
    assert len(places) > 500
    assert {name: sorted(files) for name, files in places.items() if len(files) > 1} == {}


def test_the_map_of_a_room_is_true() -> None:
    """Of the docstrings of `__init__.py`: each word in backticks is a file or a room there; large rooms name all."""
    rooms = [*ROOT.glob("kzconsumer/*/**/__init__.py"), *ROOT.glob("plugins/*/kzconsumer_*/**/__init__.py")]
    assert len(rooms) > 30
    for init in rooms:
        text = ast.get_docstring(ast.parse(init.read_bytes())) or ""
        named = set(re.findall(r"`([a-z_]+)`", text))
        files = {each.stem for each in init.parent.glob("*.py") if not each.stem.startswith("_")}
        assert named <= files | {each.name for each in init.parent.iterdir() if each.is_dir()}, init
        if len(files) > 8 and init.parent.name != "commands":
            assert files <= named, init
