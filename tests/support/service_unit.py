"""One instance of `kzconsumer@.service` under a `SystemManager`, with a group of its own."""

from __future__ import annotations

from pathlib import Path

from anyio import to_thread

from kzconsumer_sandbox.servers.configuration import HOST, free_port
from kzconsumer_sandbox.servers.kafka_servers import Cluster
from tests.support.producing import produce
from tests.support.system_manager import SystemManager


class ServiceUnit:
    """The topic, of one partition, has the unit's name."""

    def __init__(self, manager: SystemManager, cluster: Cluster, name: str, sink: str) -> None:
        self.manager = manager
        self.cluster = cluster
        self.topic = name
        self.name = f"kzconsumer@{name}.service"
        self.status = f"{HOST}:{free_port()}"
        self.text = (
            f'zookeeper = {{ connect = "{cluster.connect}", session_timeout = "20s" }}\n'
            f'group.id = "{name}"\nsubscription.topics = {{ {name} = 1 }}\n'
            f'sink = {sink}\nstatus.listen = "{self.status}"\noffsets.reset = "smallest"\n'
        )
        self.configure(self.text)

    def configure(self, text: str) -> None:
        (self.manager.config / f"{self.topic}.toml").write_text(text)

    @property
    def state(self) -> Path:
        """Its working directory."""
        return self.manager.root / "var/lib/private/kzconsumer" / self.topic

    @property
    def pid(self) -> int:
        """In the container."""
        return int(self.show("MainPID"))

    def show(self, name: str) -> str:
        return self.manager.show(self.name, name)

    def log(self, *fields: str) -> str:
        """What the journal has of it, or the lines with these fields."""
        return self.manager.run("journalctl", "--unit", self.name, "--output=cat", "--quiet", *fields)

    async def systemctl(self, verb: str, *words: str, check: bool = True) -> None:
        await to_thread.run_sync(lambda: self.manager.systemctl(verb, *words, self.name, check=check))

    async def drop_in(self, lines: str) -> None:
        folder = self.manager.units / f"{self.name}.d"
        folder.mkdir()
        (folder / "own.conf").write_text(f"[Service]\n{lines}")
        await to_thread.run_sync(self.manager.systemctl, "daemon-reload")

    async def credential(self, token: str, *, encrypted: bool) -> None:
        """The token of `status.listen` as a credential."""
        plain, setting = self.manager.config / "token", "LoadCredential=token:%E/kzconsumer/token"
        plain.write_text(token)
        plain.chmod(0o600)
        if encrypted:
            words = ("systemd-creds", "encrypt", "--with-key=host", "--name=token", "token", "token.encrypted")
            self.manager.run("env", "--chdir=/etc/kzconsumer", *words)
            setting = "LoadCredentialEncrypted=token:%E/kzconsumer/token.encrypted"
        await self.drop_in(f"{setting}\nEnvironment=KZCONSUMER__STATUS__TOKEN_FILE=%d/token\n")

    async def produce(self, *values: str) -> None:
        records = [(0, None, value.encode()) for value in values]
        await to_thread.run_sync(produce, self.cluster.bootstrap, self.cluster.version, self.topic, records)

    def written(self) -> list[str]:
        file = self.state / "records"
        return file.read_text().splitlines() if file.exists() else []
