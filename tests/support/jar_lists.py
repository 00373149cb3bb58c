"""Writes the lists of jars that the sandbox and the tests fetch: `make lock-jars`.

Each set names its `roots`. Its `jars` are these and their dependencies at run time, or only these (`alone = true`). To
change a set, change its roots and run this: it resolves every set anew and hashes what the repository serves.
"""

from __future__ import annotations

import hashlib
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jgo.maven import Dependency, MavenContext

from kzconsumer_sandbox.servers import jars
from tests.support.pages import ROOT

LISTS = Path(jars.__file__).with_suffix(".toml"), Path(__file__).with_name("jars.toml")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        maven = MavenContext(repo_cache=Path(folder), timeout=60)
        for file in LISTS:
            comment = "".join(line for line in file.read_text().splitlines(keepends=True) if line.startswith("#"))
            sets = [_locked(maven, name, table) for name, table in tomllib.loads(file.read_text()).items()]
            file.write_text(comment + "\n" + "\n".join(sets))
            print(f"{file.relative_to(ROOT)}: {len(sets)} sets", file=sys.stderr)


def _locked(maven: MavenContext, name: str, table: Mapping[str, Any]) -> str:
    print(f"{name} ...", file=sys.stderr)
    alone = bool(table.get("alone"))
    found = sorted(_jar(each) for each in _dependencies(maven, table["roots"], alone=alone))
    lines = [f'["{name}"]', *(["alone = true"] if alone else [])]
    for key, items in (("roots", table["roots"]), ("jars", found)):
        lines += [f"{key} = [", *(f'    "{each}",' for each in items), "]"]
    return "".join(f"{line}\n" for line in lines)


def _dependencies(maven: MavenContext, roots: Sequence[str], *, alone: bool) -> Iterator[Dependency]:
    wanted = []
    for root in roots:
        group, name, version, *classifier = root.split(":")
        component = maven.project(group, name).at_version(version)
        # Raw: its own list of versions counts for its own dependencies only, as in Maven.
        wanted.append(Dependency(component.artifact(*classifier), raw=True))
    if alone:
        yield from wanted
        return
    inputs, others = maven.resolver.resolve(wanted)
    yield from inputs
    yield from (each for each in others if each.scope in ("compile", "runtime") and each.type in ("jar", "bundle"))


def _jar(dependency: Dependency) -> str:
    content = dependency.artifact.resolve().read_bytes()
    coordinates = [dependency.groupId, dependency.artifactId, dependency.version]
    coordinates += [dependency.classifier] if dependency.classifier else []
    return f"{':'.join(coordinates)} {len(content)} {hashlib.sha256(content).hexdigest()}"


if __name__ == "__main__":
    main()
