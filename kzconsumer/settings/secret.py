"""Secrets, which are not in the settings but in a file or an environment variable that these name."""

from __future__ import annotations

import os
import re
from pathlib import Path

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


def read_secret(file: str | None, variable: str | None, name: str, where: str, faults: list[str]) -> bytes | None:
    """None if neither is given, or after adding a line to `faults` that begins with `where` and names the key."""
    if file is not None and variable is not None:
        faults.append(f"{where} {name}_env: cannot be given together with {name}_file")
    elif file is not None:
        try:
            secret = Path(file).read_bytes().removesuffix(b"\n").removesuffix(b"\r")
        except (OSError, ValueError) as error:
            faults.append(f"{where} {name}_file: cannot be read: {reason_of(error)}")
        else:
            mode = Path(file).stat().st_mode & 0o777
            if mode & 0o002:
                faults.append(f"{where} {name}_file: everybody may write it (mode {mode:03o}): chmod 600 {file}")
            elif secret:
                return secret
            else:
                faults.append(f"{where} {name}_file: is empty")
    elif variable is not None and not _VARIABLE.fullmatch(variable):
        faults.append(
            f"{where} {name}_env: is not the name of an environment variable; a {name} must not be written here"
        )
    elif variable is not None:
        secret = os.environb.get(os.fsencode(variable), b"")
        if secret:
            return secret
        faults.append(f"{where} {name}_env: the environment has no such variable, or an empty one")
    return None


def reason_of(error: Exception) -> str:
    """Why a file cannot be read, or a server cannot be reached, in words."""
    return (isinstance(error, OSError) and error.strerror) or str(error)
