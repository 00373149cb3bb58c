"""SASL GSSAPI with Kerberos 5 (RFC 4752): the client's half. The only user of gssapi.

Tickets are got with a keytab, and again when half of their time is over, or are those of a ticket cache that `kinit` or
another program renews.
"""

from __future__ import annotations

import os
from typing import Any, Final

from kzconsumer.errors import ProtocolError, SecurityError
from kzconsumer.installation import pip_install
from kzconsumer.security.exchange import Exchange, Sasl
from kzconsumer.settings.secret import reason_of
from kzconsumer.settings.sections import KerberosSettings

_ERRORS: Final = -1765328384 & 0xFFFFFFFF
"""The first code of libkrb5's table `krb5`."""
_KDC: Final = "check the realm, [realms] and [domain_realm] in krb5.conf, and whether the KDC runs"
_CLOCK: Final = "check this machine's clock, the server's and the KDC's"
_OLD_KEY: Final = "check keytab: its key is not the principal's current one"
_CHECKS: Final = {
    6: "check principal and its realm, and whether the KDC has it",
    7: "check whether the KDC has a principal of that service and host: service_name, and the host's name",
    23: "check whether the principal's password has expired",
    24: _OLD_KEY,
    31: _OLD_KEY,
    32: "renew the ticket cache with kinit, or set keytab and principal",
    33: _CLOCK,
    37: _CLOCK,
    154: _KDC,
    156: _KDC,
    164: _KDC,
    230: _KDC,
}
"""By the code's distance from the first."""
_NO_KEY: Final = "check whether keytab has a key of principal (klist -k), the realm, and the clocks"
_NO_TICKET: Final = "check the ticket cache (klist): run kinit, set ticket_cache, or set keytab and principal"
_NO_LAYER: Final = 1


def kerberos(settings: KerberosSettings, where: str, faults: list[str]) -> Sasl:
    """Faults are added to `faults`, each line beginning with `where`."""
    try:
        import gssapi  # noqa: F401
    except ImportError as error:
        faults.append(f"{where} mechanism: GSSAPI needs gssapi ({error}): {pip_install('kerberos')}")
    principal, keytab, cache = settings.principal, settings.keytab, settings.ticket_cache
    store: dict[str, str] | None = None if cache is None else {"ccache": cache}
    if keytab is not None:
        # In memory, shared by all connections. A replaced keytab begins another.
        store = {"client_keytab": keytab, "ccache": f"MEMORY:kzconsumer-{principal}-{_changed(keytab, where, faults)}"}
        if cache is not None:
            faults.append(f"{where} ticket_cache: cannot be given together with keytab")
        if principal is None:
            faults.append(f"{where} principal: missing, but keytab is given")

    def begin(host: str) -> Exchange:
        return _reporting(_exchange(f"{settings.service_name}@{host}", principal, store), settings, host)

    identity = f"as {principal}" if principal is not None else "with the ticket cache"
    return Sasl("GSSAPI", identity, begin, f"{_CLOCK}, and whether the server's keytab has its current key")


def _changed(keytab: str, where: str, faults: list[str]) -> int:
    try:
        with open(keytab, "rb") as file:
            return os.stat(file.fileno()).st_mtime_ns
    except (OSError, ValueError) as error:
        faults.append(f"{where} keytab: {keytab} cannot be read: {reason_of(error)}")
        return 0


def _exchange(service: str, principal: str | None, store: Any) -> Exchange:
    import gssapi

    mechanism = gssapi.MechType.kerberos
    name = None if principal is None else gssapi.Name(principal, gssapi.NameType.kerberos_principal)
    credentials = gssapi.Credentials(usage="initiate", name=name, mechs=[mechanism], store=store)
    target = gssapi.Name(service, gssapi.NameType.hostbased_service)
    context = gssapi.SecurityContext(name=target, creds=credentials, mech=mechanism, usage="initiate")
    token = context.step()
    while not context.complete:
        token = context.step((yield token or b""))
    offered = context.unwrap((yield token or b"")).message
    if len(offered) != 4:
        raise ProtocolError("GSSAPI: the server does not offer its security layers")
    if not offered[0] & _NO_LAYER:
        raise SecurityError("the server wants messages to be signed or encrypted by Kerberos; use TLS instead")
    return bytes(context.wrap(bytes((_NO_LAYER, 0, 0, 0)), False).message)


def _reporting(exchange: Exchange, settings: KerberosSettings, host: str) -> Exchange:
    """The same exchange; errors of Kerberos are SecurityErrors."""
    from gssapi.raw import GSSError

    try:
        return (yield from exchange)
    except GSSError as error:
        raise SecurityError(explain(error, settings, host)) from None


def explain(error: Any, settings: KerberosSettings, host: str) -> str:
    """One line, with what to check."""
    said = [*error.get_all_statuses(error.maj_code, True), *error.get_all_statuses(error.min_code, False)]
    reason = next((each for each in reversed(said) if each and each != "Unknown error"), "no reason")
    otherwise = _NO_KEY if settings.keytab is not None else _NO_TICKET
    check = _CHECKS.get((error.min_code & 0xFFFFFFFF) - _ERRORS, otherwise)
    return f"{reason} (for {settings.service_name}/{host}): {check}"
