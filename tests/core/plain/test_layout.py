"""The core has no module that neither the library nor the daemon imports."""

from __future__ import annotations

from importlib.metadata import entry_points

import grimp

import kzconsumer

#: Interfaces of the core that only other distributions use.
FOR_OTHERS = {
    "kzconsumer.brokers.protocol.cluster_state",
    "kzconsumer.fetcher.range_account",
    "kzconsumer.fetcher.range_reader",
    "kzconsumer.own_directory",
}


def test_library_and_daemon_reach_the_whole_core() -> None:
    graph = grimp.build_graph("kzconsumer", exclude_type_checking_imports=True)
    ours = [entry for group in ("assignors", "sinks") for entry in entry_points(group=f"kzconsumer.{group}")]
    roots = {f"kzconsumer.{home}" for home in kzconsumer._HOME.values()}
    roots |= {entry.module for entry in ours if entry.module.startswith("kzconsumer.")}
    roots |= {"kzconsumer.__main__", "kzconsumer.cli.verbs"}
    reached = roots.union(*(graph.find_upstream_modules(root) for root in roots))
    packages = {module for module in graph.modules if graph.find_children(module)}
    unreached = graph.modules - reached - packages
    assert {module for module in unreached if not module.startswith("kzconsumer.testing.")} <= FOR_OTHERS
