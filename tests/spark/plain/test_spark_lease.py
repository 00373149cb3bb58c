"""The worker's lease: held, waited for, or lost."""

from __future__ import annotations

import math
import threading

import pytest

from kzconsumer import clock
from kzconsumer_spark.ranges.lease import Lease, LeaseLost


def test_a_lease_that_holds_does_not_wait() -> None:
    Lease(clock.now() + 60, patience=0).require()


def test_a_lease_that_ran_out_is_lost_after_the_patience() -> None:
    with pytest.raises(LeaseLost):
        Lease(clock.now() - 1, patience=0.05).require()


def test_a_renewal_lets_a_waiting_batch_continue() -> None:
    lease = Lease(-math.inf, patience=60)
    renewal = threading.Timer(0.05, lease.renew, [clock.now() + 60])
    renewal.start()
    lease.require()
    renewal.join()
