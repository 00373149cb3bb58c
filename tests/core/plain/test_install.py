"""What users install: the contents of the distributions, and that they work without the source tree.

By default the wheels are installed into an environment that borrows everything else from this one: that shows their
contents, but not whether their declared requirements are enough. `make test-install` shows that, with empty
environments and each Python.
"""

from __future__ import annotations

import email
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from kzconsumer import __version__
from tests.support.installing import (
    DISTRIBUTIONS,
    ROOT,
    borrowing_environment,
    build,
    environment,
    interpreter,
    run,
)
from tests.support.programs import SYSTEMD_ANALYZE, need
from tests.support.record_sets import Record, record_batch

WHOLE = bool(os.environ.get("KZCONSUMER_INSTALL"))
HERE = f"{sys.version_info.major}.{sys.version_info.minor}"
VERSIONS = ["3.11", "3.12", "3.13", "3.14"]
INDEX_TAG = f"manylinux_2_17_{platform.machine()}"
URL = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Source"]

# Whichever test is first waits for the distributions to be built.
pytestmark = [pytest.mark.long, pytest.mark.timeout(1800 if WHOLE else 180)]

SHARED = {
    "kzconsumer": {
        "share/kzconsumer/group.reference.toml",
        *(
            f"share/kzconsumer/{each.relative_to(ROOT)}"
            for folder in ("monitoring", "systemd")
            for each in (ROOT / folder).rglob("*")
            if each.is_file()
        ),
    },
    "kzconsumer_tools": {
        "share/bash-completion/completions/kzconsumer",
        "share/fish/vendor_completions.d/kzconsumer.fish",
        "share/zsh/site-functions/_kzconsumer",
        "share/man/man1/kzconsumer.1",
    },
}
PLUGINS = {
    "kzconsumer": {"range", "roundrobin", "roundrobin-legacy", "callable", "jsonlines"},
    "kzconsumer-files": {"parquet"},
    "kzconsumer-sandbox": {"demo", "sandbox"},
    "kzconsumer-spark": {"spark"},
    "kzconsumer-sticky": {"sticky"},
    "kzconsumer-tools": {
        "cluster",
        "completion",
        "config",
        "consume",
        "context",
        "exporter",
        "groups",
        "lag",
        "manual",
        "offsets",
        "sink",
        "top",
        "topics",
    },
}
LOADED = """
from kzconsumer.plugins import ASSIGNORS, COMMANDS, SINKS, list_plugins, load
import kzconsumer
for group in (ASSIGNORS, COMMANDS, SINKS):
    for plugin in list_plugins(group):
        assert callable(load(group, plugin.name)), plugin
print(kzconsumer.__file__)
"""
WITHOUT_EXTRAS = """
import importlib, pkgutil, sys
import kzconsumer, kzconsumer_files, kzconsumer_sandbox, kzconsumer_spark, kzconsumer_sticky, kzconsumer_tools

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {extras}:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Missing())
packages = kzconsumer, kzconsumer_files, kzconsumer_sandbox, kzconsumer_spark, kzconsumer_sticky, kzconsumer_tools
for package in packages:
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if not module.name.endswith("__main__"):
            try:
                importlib.import_module(module.name)
            except ImportError:
                print(module.name)
"""
EXTRAS = [
    "aiohttp",
    "argparse_manpage",
    "confluent_kafka",
    "deltalake",
    "pyiceberg",
    "fastavro",
    "google",
    "gssapi",
    "grpc_tools",
    "hypothesis",
    "javaproperties",
    "logging_journald",
    "obstore",
    "prometheus_client",
    "psycopg",
    "pytest",
    "rich",
    "shtab",
    "urllib3",
]
IN_NEED_OF_EXTRAS = {
    *(f"kzconsumer.status.{each}" for each in ("metrics", "status_server", "web_server")),
    *(f"kzconsumer.testing.{each}" for each in ("assignor_contract", "sink_contract", "sink_group")),
    *(f"kzconsumer_spark.destinations.delta_{each}" for each in ("log", "table")),
    *(f"kzconsumer_spark.destinations.iceberg_{each}" for each in ("columns", "hive", "log", "table")),
    *(f"kzconsumer_spark.destinations.jdbc_{each}" for each in ("database", "table", "writer")),
}
DECODED = """
from kzconsumer.records.decode import decode
records = {records}
decoded = decode(memoryview(records), topic="orders", partition=0, start=7)
print(decoded.records.columns()["value"].to_pylist())
"""
RECORDS = record_batch([Record(b"k", b"order 1"), Record(None, b"order 2")], base_offset=7, codec="zstd")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return build(tmp_path_factory.mktemp("dist"), isolated=WHOLE)


@pytest.fixture(scope="module")
def wheels(built: list[Path]) -> list[Path]:
    return [each for each in built if each.suffix == ".whl"]


def test_there_is_a_wheel_and_a_source_distribution_of_each(built: list[Path], tmp_path: Path) -> None:
    """With the same version, and a page that can be shown."""
    compiled = f"cp311-abi3-{INDEX_TAG if WHOLE else sysconfig.get_platform().replace('-', '_')}"
    tags = dict.fromkeys(DISTRIBUTIONS, "py3-none-any") | {"kzconsumer": compiled}
    assert {each.name for each in built} == {
        f"{name}-{__version__}{kind}" for name, tag in tags.items() for kind in (".tar.gz", f"-{tag}.whl")
    }
    run(sys.executable, "-m", "twine", "check", "--strict", *built, within=tmp_path)


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_a_wheel_has_its_package_and_data_files(wheels: list[Path], name: str) -> None:
    (wheel,) = [each for each in wheels if each.name.startswith(f"{name}-")]
    inside = set(zipfile.ZipFile(wheel).namelist())
    folder = ROOT / DISTRIBUTIONS[name]
    package = {str(each.relative_to(folder)) for each in (folder / name).rglob("*") if each.is_file()}
    package = {each for each in package if not re.search(r"__pycache__|/native/|\.so$|^kzconsumer/README.md$", each)}
    package |= {"kzconsumer/records/_native.abi3.so"} if name == "kzconsumer" else set()
    info = {"METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE"}
    beside = {f"{name}-{__version__}.data/data/{each}" for each in SHARED.get(name, ())}
    assert inside == package | {f"{name}-{__version__}.dist-info/{each}" for each in info} | beside
    assert f"{name}/py.typed" in inside


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_the_page_of_an_index_is_complete(wheels: list[Path], name: str) -> None:
    """It has no files beside it: every link and picture has an address, of the same version."""
    (wheel,) = [each for each in wheels if each.name.startswith(f"{name}-")]
    with zipfile.ZipFile(wheel) as archive:
        shown = email.message_from_bytes(archive.read(f"{name}-{__version__}.dist-info/METADATA"))
    assert shown["Author"]
    assert "zookeeper" in shown["Keywords"]
    urls = dict(each.split(", ") for each in shown.get_all("Project-URL", ()))
    assert urls.keys() >= {"Homepage", "Documentation", "Changelog", "Issues", "Source"}
    assert all(each.startswith(URL) for each in urls.values())
    page = str(shown.get_payload())
    prose = re.sub(r"^```.*?^```$", "", page, flags=re.DOTALL | re.MULTILINE)
    links = re.findall(r"\]\(([^)]+)\)|(?:src|srcset)=\"([^\"]+)\"", prose)
    assert {each for pair in links for each in pair if each and not each.startswith(("https://", "#"))} == set()
    for kind, path in re.findall(rf"{URL}/(blob|raw)/v{__version__}/([^)#\"\s]+)", page):
        assert (ROOT / path).exists(), path
        assert (kind == "raw") == path.endswith((".svg", ".png"))


def test_the_address_of_the_project_stands_in_metadata_alone() -> None:
    """The same in each distribution: CONTRIBUTING.md has the command that changes it."""
    projects = [ROOT / "pyproject.toml", *ROOT.glob("plugins/*/pyproject.toml")]
    for project in projects:
        text = project.read_text()
        links = re.findall(r"https://[^\s'\"]+", text)
        assert len(links) >= 5
        assert [each for each in links if not each.startswith(URL)] == [], project
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("plugins/*/*.md")]
    assert {page.name for page in pages if URL in page.read_text()} <= {"CONTRIBUTING.md"}


def test_each_extra_that_is_a_distribution_is_built_with_the_version_that_it_names(wheels: list[Path]) -> None:
    """So a directory of these wheels is an index: `pip install --find-links dist 'kzconsumer[tools,sandbox]'`."""
    (wheel,) = [each for each in wheels if each.name.startswith("kzconsumer-")]
    with zipfile.ZipFile(wheel) as archive:
        shown = email.message_from_bytes(archive.read(f"kzconsumer-{__version__}.dist-info/METADATA"))
    ours = [Requirement(each) for each in shown.get_all("Requires-Dist", ()) if each.startswith("kzconsumer-")]
    assert {each.name.replace("-", "_") for each in ours} == DISTRIBUTIONS.keys() - {"kzconsumer"}
    assert all(each.specifier.contains(__version__) for each in ours)


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_a_source_distribution_has_its_sources(built: list[Path], name: str) -> None:
    """The wheels were built from it, too (`built`). Tests are not included: they need the plugins and the tree."""
    with tarfile.open(next(each for each in built if each.name == f"{name}-{__version__}.tar.gz")) as archive:
        first = {each.split("/")[1] for each in archive.getnames()}
    always = {".gitignore", "LICENSE", "PKG-INFO", "README.md", "pyproject.toml", name}
    more = {
        "kzconsumer": {"CHANGELOG.md", "config", "docs", "hatch_build.py", "monitoring", "systemd"},
        "kzconsumer_tools": {"hatch_build.py", "share"},
    }
    assert first == always | more.get(name, set())


def test_licences_are_the_same() -> None:
    assert len({(ROOT / folder / "LICENSE").read_bytes() for folder in DISTRIBUTIONS.values()}) == 1


@pytest.fixture(scope="module", params=VERSIONS if WHOLE else [HERE])
def installed(
    request: pytest.FixtureRequest, wheels: list[Path], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path]:
    """A directory that stands for the root of a machine, with the commands of the environment in its /opt."""
    root = tmp_path_factory.mktemp("root")
    at = root / "opt" / f"kzconsumer-{__version__}"
    at.parent.mkdir()
    if not WHOLE:
        return root, borrowing_environment(at, wheels)
    python = interpreter(request.param)
    if python is None:
        pytest.skip(f"NOT TESTED on Python {request.param}: there is none here (PATH, pyenv, uv)")
    return root, environment(python, at, wheels)


def test_installed_distributions_work(installed: tuple[Path, Path], tmp_path: Path) -> None:
    root, commands = installed

    def kzconsumer(*words: str | Path) -> str:
        return run(commands / "kzconsumer", *words, within=tmp_path, path=commands)

    assert kzconsumer("--version") == f"kzconsumer {__version__}\n"
    assert kzconsumer("--help").startswith("usage: kzconsumer ")

    listed = dict(re.findall(r"^(\S+) \S+\n((?:  .*\n)+)", kzconsumer("plugins"), re.MULTILINE))
    assert {name: {line.split()[1] for line in lines.splitlines()} for name, lines in listed.items()} == PLUGINS

    shared = commands.parent / "share"
    there = {str(each.relative_to(commands.parent)) for each in shared.rglob("*") if each.is_file()}
    assert there >= {each for files in SHARED.values() for each in files}
    assert (shared / "bash-completion/completions/kzconsumer").read_text() == kzconsumer("completion", "bash")
    assert ".TH KZCONSUMER" in (shared / "man/man1/kzconsumer.1").read_text()

    kzconsumer("check-config", shared / "kzconsumer" / "group.reference.toml")
    (tmp_path / "group.toml").write_text((ROOT / "config" / "group.toml").read_text())
    spark = 'sink.options={destination="parquet", path="out"}'
    kzconsumer("check-config", "group.toml", "--set", "group.assignor=sticky")
    kzconsumer("check-config", "group.toml", "--set", "sink.plugin=spark", "--set", spark)

    python = commands / "python"
    at = Path(run(python, "-W", "error", "-c", LOADED, within=tmp_path).strip())
    assert at.is_relative_to(root)
    assert os.access(next(at.parents[1].glob("kzconsumer_spark/*/bin/java")), os.X_OK)
    in_need = run(python, "-c", WITHOUT_EXTRAS.format(extras=EXTRAS), within=tmp_path).split()
    need_theirs = ("kzconsumer_sandbox.", "kzconsumer_tools.")
    assert {name for name in in_need if not name.startswith(need_theirs)} == IN_NEED_OF_EXTRAS
    decoded = run(python, "-c", DECODED.format(records=RECORDS), within=tmp_path)
    assert decoded == "[b'order 1', b'order 2']\n"
    if WHOLE:
        run(commands / "pip", "check", within=tmp_path)


@pytest.mark.needs(SYSTEMD_ANALYZE)
def test_the_installation_page_lays_out_a_machine(installed: tuple[Path, Path], tmp_path: Path) -> None:
    """All commands of docs/installation.md that are not marked, in order, with a directory as the root."""
    root, _ = installed
    text = (ROOT / "docs" / "installation.md").read_text()
    script = "\n".join(re.findall(r"(?<!-->\n)^```sh\n(.*?)^```$", text, re.DOTALL | re.MULTILINE))
    script = re.sub(r"(?<![\w$/}])/(opt|etc|usr/local|var)/", rf"{root}/\1/", script)
    script = script.replace("systemd-sysusers", f"systemd-sysusers --root={root}")
    (group,) = re.findall(r"^```toml\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    (tmp_path / "orders.toml").write_text(group)
    (tmp_path / "kafka.password").write_text("secret")
    (root / "usr/local/bin").mkdir(parents=True)
    run("bash", "-eu", "-c", script, within=tmp_path, path=root / "usr/local/bin")

    units = root / "etc/systemd/system"
    done = subprocess.run(
        [need(SYSTEMD_ANALYZE), "verify", "--man=no", units / "kzconsumer@orders.service", units / "kzconsumer.target"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert (units / "kzconsumer@.service").read_text().count(f"\nExecStart={root}/opt/kzconsumer/bin/kzconsumer ") == 1
    assert (root / "etc/passwd").read_text().startswith("kzconsumer:x:")
    assert (root / "usr/local/share/man/man1/kzconsumer.1").exists()


def test_the_dockerfile_passes_hadolint(tmp_path: Path) -> None:
    run(Path(sys.executable).with_name("hadolint"), ROOT / "docs" / "Dockerfile", within=tmp_path)


@pytest.mark.skipif(not WHOLE, reason="builds from the source tree with all it needs: make test-install")
def test_the_image_can_be_built(tmp_path: Path) -> None:
    """What docs/Dockerfile copies and runs, in directories, without the package manager and useradd."""
    text = (ROOT / "docs" / "Dockerfile").read_text().replace("\\\n", "")
    (version,) = set(re.findall(r"^FROM python:(\S+)-slim-bookworm", text, re.MULTILINE))
    python = interpreter(version)
    if python is None:
        pytest.skip(f"NOT TESTED with Python {version}: there is none here (PATH, pyenv, uv)")
    source = tmp_path / "src"
    source.mkdir()
    for words in re.findall(r"^COPY (?!--)(.*)$", text, re.MULTILINE):
        *copied, to = words.split()
        for each in copied:
            if (ROOT / each).is_dir():
                shutil.copytree(ROOT / each, source / to, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / each, source / to)
    for line in re.findall(r"^RUN (.*)$", text, re.MULTILINE):
        if "apt-get" not in line and "useradd" not in line:
            run(
                "sh",
                "-eu",
                "-c",
                line.replace("/opt/", f"{tmp_path}/opt/"),
                within=source,
                path=python.parent,
                limit=900,
            )
    (entry,) = re.findall(r"^ENTRYPOINT \[\"(.*)\"\]$", text, re.MULTILINE)
    listed = run(tmp_path / "opt/kzconsumer/bin" / entry, "plugins", within=tmp_path)
    assert set(re.findall(r"^(kzconsumer\S*) ", listed, re.MULTILINE)) == PLUGINS.keys() - {"kzconsumer-sandbox"}
