"""Takes the pictures of docs: `python -m tests.ui.screenshots`, about three minutes."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import pytest

from tests.programs import on_path
from tests.ui.scene import need_browser, node, scene_in

PICTURES = Path(__file__).parents[2] / "docs/pictures"
WATCH_S = 90
"""The plots show minutes: so long the page is left alone first."""
MOST_BYTES = 200_000


def main() -> int:
    """Write docs/pictures/ui-*.png; 1 with the reason when that fails."""
    on_path()
    try:
        need_browser()
    except pytest.skip.Exception as lack:
        print(lack)
        return 1
    with tempfile.TemporaryDirectory() as folder, scene_in(Path(folder)) as scene:
        told = {"url": scene.url, "key": scene.key, "answered": scene.answered[-1]}
        ran = node("shoot.mjs", {**told, "folder": str(PICTURES), "watch_s": WATCH_S}, WATCH_S + 120)
    print(ran.stdout, ran.stderr)
    large = [path.name for path in PICTURES.glob("ui-*.png") if path.stat().st_size > MOST_BYTES]
    if large:
        print(f"larger than {MOST_BYTES} bytes: {', '.join(large)}")
    return 1 if ran.returncode or large else 0


if __name__ == "__main__":
    sys.exit(main())
