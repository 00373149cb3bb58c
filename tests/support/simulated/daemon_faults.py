"""What happens to the process of a simulated daemon, to its lines, its destination and its nodes.

Each fault notes until when it may explain what the daemon does.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from kzconsumer.model import TopicPartition
from kzconsumer.zookeeper.operations import Delete
from tests.support.simulated.lost_replies import Loss
from tests.support.simulated.member import GROUP
from tests.support.simulated.network import QUICK, SLOW
from tests.support.simulated.promises import GRACE
from tests.support.simulated.scene import SESSION_TIMEOUT

if TYPE_CHECKING:
    from tests.support.simulated.daemon import SimulatedDaemon
    from tests.support.simulated.daemons import Daemons


class DaemonFaults:
    """Faults of one daemon, and of all of them."""

    def __init__(self, daemons: Daemons) -> None:
        self._daemons = daemons
        self._group = daemons.group
        self.of_all_until = 0.0
        """As `SimulatedDaemon.troubled`, also of those that start meanwhile."""

    def trouble(self, daemons: Iterable[SimulatedDaemon], seconds: float) -> None:
        """A fault of this duration affects them; each may lose its session and notice that late."""
        now = self._group.world.now
        for daemon in daemons:
            daemon.troubled = max(daemon.troubled, now + seconds + 2 * SESSION_TIMEOUT)
            daemon.late_until = max(daemon.late_until, now + seconds)
            if daemon.misled_until > now:
                daemon.misled_until = max(daemon.misled_until, daemon.late_until + GRACE)

    def trouble_all(self, seconds: float) -> None:
        self.trouble(self._daemons.daemons, seconds)
        self.of_all_until = max(self.of_all_until, self._group.world.now + seconds + 2 * SESSION_TIMEOUT)

    def kill(self, daemon: SimulatedDaemon) -> None:
        daemon.killed = daemon.process.frozen = True
        self._group.network.cut(daemon.process, arrives=True)

    def silence(self, daemon: SimulatedDaemon, seconds: float) -> None:
        """Its packets are lost."""
        self.trouble([daemon], seconds)
        daemon.silences += 1
        self._group.network.set_silent(daemon.process, True)
        self._group.world.after(seconds, lambda: self._unsilence(daemon))

    def _unsilence(self, daemon: SimulatedDaemon) -> None:
        daemon.silences -= 1
        if not daemon.silences:
            self._group.network.set_silent(daemon.process, False)

    def freeze(self, daemon: SimulatedDaemon, seconds: float) -> None:
        """As SIGSTOP and SIGCONT."""
        self.trouble([daemon], seconds)
        daemon.freezes += 1
        daemon.process.frozen = True
        self._group.world.after(seconds, lambda: self._thaw(daemon))

    def _thaw(self, daemon: SimulatedDaemon) -> None:
        daemon.freezes -= 1
        if not daemon.killed and not daemon.freezes:
            daemon.unfreeze()

    def expire(self, daemon: SimulatedDaemon) -> None:
        """An operator ends its sessions, which no lease can predict."""
        self.trouble([daemon], 0.0)
        daemon.misled_until = self._group.world.now + GRACE
        for session in self._group.ensemble.sessions.values():
            if session.alive and self._group.network.processes.get(session.id) is daemon.process:
                self._group.ensemble.close(session)

    def lose_a_reply(self, daemon: SimulatedDaemon, loss: Loss) -> None:
        self._group.network.losing[daemon.process] = replace(loss)

    def change_line(self, daemon: SimulatedDaemon, slow: bool) -> None:
        self._group.network.latency[daemon.process] = SLOW if slow else QUICK
        if daemon.slow:
            self.trouble([daemon], 0.0)
        daemon.slow = slow

    def suspend_machines(self, seconds: float) -> None:
        """Of all daemons: clocks go on, timers do not. The servers end their sessions if that takes longer."""
        self._group.world.slept += seconds
        self.trouble_all(0.0)
        if seconds > SESSION_TIMEOUT:
            for daemon in self._daemons.daemons:
                self.expire(daemon)

    def cut_off(self, server: int, seconds: float) -> None:
        self.trouble_all(seconds)
        self._group.cut_off(server, seconds)

    def stop_leader(self, server: int, stopped: float, alone: float) -> None:
        """See `SimulatedGroup.stop_leader`."""
        self.trouble_all(stopped + alone)
        self._group.stop_leader(server, stopped, alone)

    def overload(self, share: float, seconds: float) -> None:
        """Its servers do not execute so many of the requests."""
        self.trouble_all(seconds)
        self._group.ensemble.throttled = share
        self._group.world.after(seconds, lambda: setattr(self._group.ensemble, "throttled", 0.0))

    def delete_owner(self, partition: TopicPartition) -> None:
        """By mistake."""
        for daemon in self._daemons.daemons:
            daemon.misled_until = max(self._group.world.now, daemon.late_until) + GRACE
        self._group.ensemble.operate(Delete(self._group.paths.owner(partition), -1))

    def delete_registration(self, daemon: SimulatedDaemon) -> None:
        """By mistake: it registers again."""
        self.trouble([daemon], 0.0)
        self._group.ensemble.operate(
            Delete(self._group.paths.member(f"{GROUP}_{daemon.settings.group.consumer_id}"), -1)
        )

    def end(self) -> None:
        """No fault any more, but for those that end by themselves in less than two session timeouts."""
        self._group.ensemble.throttled = 0.0
        self._group.network.forget_faults()
        for daemon in self._daemons.daemons:
            daemon.pace, daemon.refuses = 0.0, False
            if daemon.slow:
                self.change_line(daemon, slow=False)
            if not daemon.killed:
                daemon.unfreeze()
