"""What an ensemble has committed, from the transaction logs of its servers.

A transaction is committed once a majority has logged it. A zxid is an epoch, one for each leader, and a number that
counts from 1 in it; a leader's transactions are committed in their order. So what was committed in an epoch is all up
to the last one that a majority has; what one server has beyond that may be a proposal of a leader that was killed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tests.interop.txn_log import Txn


class IncompleteLogsError(Exception):
    """A transaction that was committed is in none of the logs."""


def committed(logs: Sequence[Sequence[Txn]]) -> list[Txn]:
    """One log for each server -> the ensemble's history, in order.

    Raises IncompleteLogsError where one is missing, because a server took a snapshot in place of transactions.
    """
    servers = Counter(zxid for log in logs for zxid in {txn.zxid for txn in log})
    everything = {txn.zxid: txn for log in logs for txn in log}
    last: dict[int, int] = {}
    for zxid, count in servers.items():
        if 2 * count > len(logs):
            last[_epoch(zxid)] = max(zxid, last.get(_epoch(zxid), 0))
    history = []
    for epoch, end in sorted(last.items()):
        for zxid in range((epoch << 32) + 1, end + 1):
            if zxid not in everything:
                raise IncompleteLogsError(f"no server's log has transaction {zxid:#x}")
            history.append(everything[zxid])
    return history


def _epoch(zxid: int) -> int:
    return zxid >> 32
