"""A real systemd: process 1 of a container that shares this machine's /usr and network, and nothing else of it."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from kzconsumer_sandbox.servers.server_process import ServerProcess
from tests.support.programs import NSPAWN, need

ROOT = Path(__file__).parents[2]
_UNITS = ROOT / "systemd"
_PYTHON = "/opt/python"
"""In the container, where the home of another user would be hidden from a unit."""
_SOURCES = ["/opt/source", *(f"/opt/source/plugins/{each.name}" for each in ROOT.glob("plugins/*"))]
_COMMANDS = {
    "python": f"""\
#!/bin/sh
export LD_LIBRARY_PATH={_PYTHON}/lib PYTHONDONTWRITEBYTECODE=1
export PYTHONPATH={":".join(_SOURCES)}:/opt/packages
exec {_PYTHON}/bin/python3 "$@"
""",
    "kzconsumer": """\
#!/bin/sh
exec /opt/kzconsumer/bin/python -m kzconsumer "$@"
""",
}
_CGROUPS = "mount -t cgroup2 none /sys/fs/cgroup"
_OPTIONS = "--quiet --volatile=yes --register=no --keep-unit --console=pipe --resolv-conf=off"


class SystemManager(ServerProcess):
    """`units` is /etc/systemd/system in the container, and `config` is /etc/kzconsumer."""

    def __init__(self, folder: Path, system: Path) -> None:
        super().__init__("systemd", folder)
        self.units = folder / "units"
        self.config = folder / "config"
        # In a mount namespace: nspawn leaves nothing in the machine's /run, and each container has its own cgroup.
        self._cgroup = f"/sys/fs/cgroup/kzconsumer-tests-{folder.stat().st_ino}"
        join = f"mkdir -p {self._cgroup} && echo $$ >{self._cgroup}/cgroup.procs"
        script = f'mount -t tmpfs none /run && {_CGROUPS} && {join} && exec "$@"'
        nspawn = [str(need(NSPAWN)), *_OPTIONS.split(), f"--directory={system}"]
        self._container = ["/usr/bin/env", "unshare", "--mount", "sh", "-c", script, "sh", *nspawn]

    def what_prevents_it(self) -> str:
        """Why no container can be started here; empty if one can."""
        done = subprocess.run([*self._container, "true"], capture_output=True, text=True, timeout=60, check=False)
        return done.stderr.strip() if done.returncode else ""

    def command(self) -> list[str]:
        commands = self.folder / "bin"
        for each in (self.units, self.config, commands):
            each.mkdir(exist_ok=True)
        for name, text in _COMMANDS.items():
            (commands / name).write_text(text)
            (commands / name).chmod(0o755)
        # With an id this is not the machine's first boot, at which systemd enables all units that there are.
        (self.folder / "machine-id").write_text("1" * 32 + "\n")
        read_only = {
            sys.base_prefix: _PYTHON,
            sysconfig.get_path("purelib"): "/opt/packages",
            ROOT: "/opt/source",
            commands: "/opt/kzconsumer/bin",
            self.folder / "machine-id": "/etc/machine-id",
        }
        writable = {self.units: "/etc/systemd/system", self.config: "/etc/kzconsumer"}
        return [
            *self._container,
            *(f"--bind-ro={path}:{at}" for path, at in read_only.items()),
            *(f"--bind={path}:{at}" for path, at in writable.items()),
            *("--boot", "systemd.mask=systemd-machine-id-commit.service"),
        ]

    @property
    def _first(self) -> str:
        """The id of the container's process 1; empty before it has started."""
        with suppress(OSError):
            return Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().strip()
        return ""

    @property
    def root(self) -> Path:
        """The container's file system."""
        return Path(f"/proc/{self._first}/root")

    def serves(self) -> bool:
        return bool(self._first) and self.systemctl("is-system-running", check=False) in ("running", "degraded")

    def run(self, *words: str, check: bool = True) -> str:
        """Blocks. What a command prints that root runs in the container; with `check` it must succeed."""
        inside = ["nsenter", f"--target={self._first}", "--all", "--", *words]
        done = subprocess.run(inside, capture_output=True, text=True, timeout=150, cwd="/")
        assert done.returncode == 0 or not check, f"{words}: {done.stdout}{done.stderr}{self.last_lines()}"
        return done.stdout.strip()

    def install(self, drop_in: str) -> None:
        """The unit and the target as docs/installation.md does, the drop-in of this systemd, and another."""
        unit = (_UNITS / "kzconsumer@.service").read_text()
        (self.units / "kzconsumer@.service").write_text(unit.replace("=/usr/bin/", "=/opt/kzconsumer/bin/"))
        shutil.copy(_UNITS / "kzconsumer.target", self.units)
        drop_ins = self.units / "kzconsumer@.service.d"
        drop_ins.mkdir()
        (drop_ins / "test.conf").write_text(f"[Service]\n{drop_in}\n")
        if self.reload_waits:
            shutil.copy(_UNITS / "drop-ins" / "systemd-254.conf", drop_ins)
        self.systemctl("daemon-reload")

    @property
    def reload_waits(self) -> bool:
        return int(self.systemctl("--version").split()[1]) >= 254

    def restart(self) -> None:
        """As if the machine started again: enabled units start, what was written elsewhere is gone."""
        self.systemctl("poweroff")
        self.wait_ended(60)
        self.start()
        self.wait_ready()

    def systemctl(self, *words: str, check: bool = True) -> str:
        return self.run("systemctl", *words, check=check)

    def show(self, unit: str, name: str) -> str:
        return self.systemctl("show", "--value", "--property", name, unit)

    def remove_cgroup(self) -> None:
        script = f"{_CGROUPS} && find {self._cgroup} -depth -type d -exec rmdir {{}} +"
        subprocess.run(["unshare", "--mount", "sh", "-c", script], capture_output=True, check=False)


@contextmanager
def system_manager(folder: Path, system: Path) -> Iterator[SystemManager]:
    """Stops all services at the end. Skips the test where containers are not permitted."""
    manager = SystemManager(folder, system)
    try:
        if reason := manager.what_prevents_it():
            pytest.skip(f"containers are not permitted here, only to root of most machines: {reason}")
        manager.start()
        manager.wait_ready()
        yield manager
        manager.systemctl("poweroff")
        manager.wait_ended(60)
    finally:
        manager.kill()
        manager.remove_cgroup()
