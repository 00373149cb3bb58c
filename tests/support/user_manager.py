"""A real systemd: a user manager in a mount namespace of its own, in which systemd seems to be process 1."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kzconsumer_sandbox.servers.server_process import ServerProcess
from tests.support.programs import SYSTEMD, need

_RUNTIME = "/run/manager"
"""In the namespace."""


class UserManager(ServerProcess):
    """`units` is the folder of the unit files. Services are the test's user's, so that some hardening is impossible."""

    def __init__(self, folder: Path) -> None:
        super().__init__("systemd", folder)
        self._systemd = need(SYSTEMD)
        self.units = folder / "config" / "systemd" / "user"
        self.units.mkdir(parents=True)

    def command(self) -> list[str]:
        # Mounts of the namespace are shared with those that systemd makes for services, as at a machine's start.
        mounts = "mount -t tmpfs none /run && mount --make-rshared /"
        folders = f"mkdir -p /run/systemd/system {_RUNTIME} && chmod 700 {_RUNTIME}"
        variables = f"XDG_RUNTIME_DIR={_RUNTIME} XDG_CONFIG_HOME={self.folder}/config HOME={self.folder} PATH=$PATH"
        start = f"exec env -i {variables} {self._systemd} --user --log-target=console"
        return ["/usr/bin/env", "unshare", "--mount", "sh", "-c", f"{mounts} && {folders} && {start}"]

    def serves(self) -> bool:
        return self.systemctl("is-system-running", check=False) in ("running", "degraded")

    def systemctl(self, *words: str, check: bool = True) -> str:
        """Blocks. What it prints; with `check` it must succeed."""
        inside = ["nsenter", f"--mount=/proc/{self.pid}/ns/mnt", "env", f"XDG_RUNTIME_DIR={_RUNTIME}"]
        done = subprocess.run([*inside, "systemctl", "--user", *words], capture_output=True, text=True, timeout=150)
        assert done.returncode == 0 or not check, f"{words}: {done.stdout}{done.stderr}{self.last_lines()}"
        return done.stdout.strip()

    def show(self, unit: str, name: str) -> str:
        return self.systemctl("show", "--value", "--property", name, unit)


@contextmanager
def user_manager(folder: Path) -> Iterator[UserManager]:
    """Stops all services at the end. Skips the test where mount namespaces are not permitted."""
    manager = UserManager(folder)
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode:
        pytest.skip("mount namespaces are not permitted here: run the tests as root")
    manager.start()
    try:
        manager.wait_ready()
        yield manager
    finally:
        manager.systemctl("exit", check=False)
        try:
            manager.wait_ended(60)
        finally:
            manager.kill()
