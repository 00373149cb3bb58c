"""Which of a broker's listeners is used, and the error if none can be used."""

from __future__ import annotations

import pytest

from kzconsumer.registry.nodes import BrokerListener, choose

PLAINTEXT = BrokerListener("PLAINTEXT", "PLAINTEXT", "a", 1)
SSL = BrokerListener("SSL", "SSL", "a", 2)
INNER = BrokerListener("INNER", "SASL_SSL", "a", 3)
OUTER = BrokerListener("OUTER", "SASL_SSL", "b", 4)
ALL = [OUTER, SSL, PLAINTEXT, INNER]


@pytest.mark.parametrize(
    ("listeners", "name", "protocol", "chosen"),
    [
        (ALL, None, "PLAINTEXT", PLAINTEXT),
        (ALL, None, "SSL", SSL),
        ([SSL, INNER], None, "SASL_SSL", INNER),
        (ALL, "OUTER", "SASL_SSL", OUTER),
        (ALL, "INNER", "SASL_SSL", INNER),
        ([BrokerListener("X", "SSL", "a", 9), SSL], None, "SSL", SSL),
    ],
)
def test_the_listener_that_is_used(
    listeners: list[BrokerListener], name: str | None, protocol: str, chosen: BrokerListener
) -> None:
    assert choose(listeners, name, protocol) == chosen


@pytest.mark.parametrize(
    ("listeners", "name", "protocol", "why"),
    [
        ([SSL, INNER], None, "PLAINTEXT", "no listener speaks PLAINTEXT ([brokers] security_protocol); "
         "it has SSL, INNER (SASL_SSL)"),
        ([], None, "PLAINTEXT", "no listener speaks PLAINTEXT ([brokers] security_protocol); it has none"),
        ([PLAINTEXT, INNER], "OUTER", "SASL_SSL", "no listener OUTER ([brokers] listener); "
         "it has PLAINTEXT, INNER (SASL_SSL)"),
        (ALL, "OUTER", "PLAINTEXT", "listener OUTER speaks SASL_SSL, not PLAINTEXT ([brokers] security_protocol)"),
        ([INNER, OUTER], None, "SASL_SSL", "several listeners speak SASL_SSL, [brokers] listener names none; "
         "it has INNER (SASL_SSL), OUTER (SASL_SSL)"),
    ],
)  # fmt: skip
def test_each_fault_is_reported(listeners: list[BrokerListener], name: str | None, protocol: str, why: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        choose(listeners, name, protocol)
    assert str(caught.value) == why
