"""A reader of deploy/Dockerfile: its instructions, stage by stage."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PATH = ROOT / "deploy" / "Dockerfile"


class Instruction(NamedTuple):
    """One instruction: `COPY`, and the rest of its line."""

    name: str
    text: str

    @property
    def arguments(self) -> list[str]:
        """The arguments of an exec form, or the words."""
        return list(json.loads(self.text)) if self.text.startswith("[") else shlex.split(self.text)

    @property
    def is_exec_form(self) -> bool:
        return self.text.startswith("[")


def read_stages(text: str) -> list[list[Instruction]]:
    """Return the instructions of each stage, from its FROM on. What stands before the first is left out."""
    lines = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    stages: list[list[Instruction]] = []
    for line in re.sub(r"\\\n\s*", "", lines).splitlines():
        name, _, rest = line.partition(" ")
        if name == "FROM":
            stages.append([])
        if name and stages:
            stages[-1].append(Instruction(name, rest.strip()))
    return stages


BUILD, IMAGE = read_stages(PATH.read_text())
"""The stage that installs later, and the one that is the image."""


def only(stage: list[Instruction], name: str) -> Instruction:
    """Return the only instruction of this name."""
    (found,) = [instruction for instruction in stage if instruction.name == name]
    return found


def pairs(stage: list[Instruction], name: str) -> dict[str, str]:
    """Return the names and values of ENV or LABEL."""
    words = [word for instruction in stage if instruction.name == name for word in instruction.arguments]
    return dict(word.split("=", 1) for word in words)


def copied() -> list[str]:
    """Return what the build copies from the checkout."""
    return [source for i in BUILD if i.name == "COPY" for source in i.arguments[:-1]]
