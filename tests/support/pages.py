"""Commands and output printed in the pages of docs/, compared by form where the output varies."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(r"^```console\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_VARYING = [
    (re.compile(r"\b\d+\.\d+\.\d+\.\d+:\d+\b"), "ADDRESS"),
    (re.compile(r"\b(?:cluster|id) [\w-]{22}(?=:|$)", re.MULTILINE), "ID"),
    (re.compile(r"\b\d+ (d|h|min) \d+ (h|min|s)\b"), "AGE"),
    (re.compile(r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"), "TIME"),
]


class Printed(NamedTuple):
    command: str
    answer: list[str]


def printed(page: str) -> list[Printed]:
    """Every `$ kzconsumer ...` of a page, with the lines that follow it in its block."""
    found: list[Printed] = []
    for block in _BLOCK.findall((ROOT / page).read_text()):
        for line in block.splitlines():
            if line.startswith("$ kzconsumer "):
                found.append(Printed(line.removeprefix("$ kzconsumer "), []))
            else:
                found[-1].answer.append(line)
    return found


def form(lines: list[str]) -> list[str]:
    """Without what varies, and the width that it takes."""
    text = "\n".join(lines)
    for varying, name in _VARYING:
        text = varying.sub(name, text)
    return [" ".join(line.split()) for line in text.strip().splitlines()]


def files_shown(page: str, language: str) -> dict[str, str]:
    """The files in the only block of a page in that language: name -> text. A comment with the path begins each."""
    (block,) = re.findall(rf"^```{language}\n(.*?)^```$", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)
    parts = re.split(r"^# /\S+/(\S+)\n", block, flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))
