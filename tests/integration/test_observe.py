"""Every panel and alert rule, asked of a real Prometheus that scrapes a real fleet under load."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from monitoring.observe.prometheus import MISSING
from monitoring.observe.questions import questions
from tests.programs import program

pytestmark = pytest.mark.timeout(180)


def test_every_panel_has_data_and_every_rule_can_be_evaluated(repository: Path) -> None:
    program("prometheus")
    words = [sys.executable, "-m", "monitoring.observe", "--seconds", "90"]
    seen = subprocess.run(words, cwd=repository, capture_output=True, text=True, check=False, timeout=170)
    assert seen.returncode == 0, seen.stdout + seen.stderr
    lines = seen.stdout.splitlines()
    assert len([line for line in lines if line.startswith("ok ")]) >= len(
        [each for each in questions() if not each.outside]
    )
    assert lines[-1] == "panels without data: 0; rules that cannot be evaluated: 0"
    assert [line for line in lines if " rule " in line]


def test_without_prometheus_it_says_what_to_install(repository: Path, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "monitoring.observe"]
    environment = {**os.environ, "PATH": str(tmp_path)}
    seen = subprocess.run(
        words, cwd=repository, env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    assert (seen.returncode, seen.stderr.strip().splitlines()[-1]) == (77, f"observe: {MISSING}")
