"""The page /ui in a real browser: read, searched, acted on, by keyboard too, with hostile contents in it."""

from __future__ import annotations

import os
import shutil
import subprocess
from importlib import metadata, resources
from pathlib import Path

import pytest

from tests.programs import program
from tests.ui.scene import HOSTILE, HOSTILE_IDS, WORKERS, need_browser, node, scene_in

pytestmark = pytest.mark.timeout(240)
DRIVE_S = 180.0


def test_the_page_in_a_browser(tmp_path: Path) -> None:
    """tests/ui/steps.mjs has the steps; each must leave no fault behind: no error, no dialog, no other host asked."""
    need_browser()
    with scene_in(tmp_path) as scene:
        told = {
            "url": scene.url,
            "key": scene.key,
            "plain_key": scene.plain_key,
            "worker": WORKERS[0],
            "version": metadata.version("streamfleet"),
            "answered": scene.answered[0],
            "tenant": "reports",
            "hostile": len(HOSTILE_IDS),
            "hostile_id": HOSTILE_IDS[0],
            "hostile_mark": "window.hostile",
            "hostile_text": HOSTILE,
            "expired": "late-1",
            "purged": "broken-1",
        }
        drive = node("drive.mjs", told, DRIVE_S)
    print(drive.stdout)
    assert drive.returncode == 0, f"{drive.stdout}\n{drive.stderr}"


def test_what_its_modules_make_of_values(tmp_path: Path) -> None:
    """tests/ui/pure.test.mjs, on a copy that Node takes for modules."""
    node_program = program("node")
    with resources.as_file(resources.files("streamfleet.gateway.ui") / "static") as static:
        shutil.copytree(static, tmp_path / "static")
    (tmp_path / "static/package.json").write_text('{"type": "module"}', encoding="utf-8")
    environment = {**os.environ, "STATIC": f"{(tmp_path / 'static').as_uri()}/"}
    tests = Path(__file__).with_name("pure.test.mjs")
    ran = subprocess.run([node_program, "--test", tests], env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout
