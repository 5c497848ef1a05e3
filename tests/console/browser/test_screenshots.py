"""The script that takes the pictures of the documentation."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from scripts import console_screenshots


def test_the_script_takes_each_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["console_screenshots", "--folder", str(tmp_path)])
    assert console_screenshots.main() == 0
    for picture in console_screenshots.PICTURES:
        with Image.open(tmp_path / picture.name) as image:
            assert image.size == (console_screenshots.WIDTH, picture.height)
            assert len(image.getcolors(1_000_000) or ()) > 500  # a page that is drawn, with its charts
