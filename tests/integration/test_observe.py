"""`make observe` where Prometheus is missing; where it is there, it is one of the long runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from monitoring.observe.prometheus import MISSING


def test_without_prometheus_it_says_what_to_install(repository: Path, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "monitoring.observe"]
    environment = {**os.environ, "PATH": str(tmp_path)}
    seen = subprocess.run(
        words, cwd=repository, env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    assert (seen.returncode, seen.stderr.strip().splitlines()[-1]) == (77, f"observe: {MISSING}")
