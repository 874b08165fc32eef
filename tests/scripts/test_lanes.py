"""The lanes are one list: with another lane in it, requests pass through all scripts. The protocol has four."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from streamfleet.common.protocol import LANES
from tests.conftest import REPOSITORY

ROOTS = ("common", "producer", "worker", "cli")
LIST = "common/protocol.py"
EDITS = (
    ('    LOW = "low"\n', '    LOW = "low"\n    BULK = "bulk"\n'),
    ("= (0, 0, 100, 50)\n", "= (0, 0, 100, 50, 0)\n"),
)


def test_a_fifth_lane_needs_no_other_change_of_the_scripts_and_the_broker(redis_url: str, tmp_path: Path) -> None:
    for root in ROOTS:
        shutil.copytree(REPOSITORY / root / "streamfleet" / root, tmp_path / "streamfleet" / root)
    edited = tmp_path / "streamfleet" / LIST
    text = edited.read_text(encoding="utf-8")
    for old, new in EDITS:
        assert text.count(old) == 1
        text = text.replace(old, new)
    edited.write_text(text, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "tests.scripts.fifth_lane", redis_url],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_the_protocol_has_four() -> None:
    assert LANES == ("critical", "high", "normal", "low")
