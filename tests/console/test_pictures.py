"""The pictures of the console in the documentation."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAX_PICTURE_BYTES = 150_000
PICTURES = {"docs/console-overview.png", "docs/console-topic.png"}


def pictures_in(document: str) -> set[str]:
    """Return the paths of the pictures that a document shows, below the repository."""
    paths = re.findall(r"!\[[^\]]+\]\(([^)]+\.png)\)", (ROOT / document).read_text())
    return {str(((ROOT / document).parent / path).resolve().relative_to(ROOT)) for path in paths}


@pytest.mark.parametrize("document", ["README.md", "docs/console.md"])
def test_the_documentation_shows_the_console(document: str) -> None:
    assert pictures_in(document) == PICTURES


@pytest.mark.parametrize("picture", sorted(PICTURES))
def test_a_picture_is_small(picture: str) -> None:
    content = (ROOT / picture).read_bytes()
    assert content.startswith(b"\x89PNG")
    assert len(content) <= MAX_PICTURE_BYTES
