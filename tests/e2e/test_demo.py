"""`streamfleet demo`, which is all that `make demo` adds to its set-up."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.long, pytest.mark.needs_vllm, pytest.mark.timeout(480)]


def test_the_demo_answers_in_order_and_adds_up(smollm2: Path) -> None:
    assert smollm2.is_dir()
    done = subprocess.run(
        [sys.executable, "-m", "streamfleet.cli", "demo"], capture_output=True, text=True, timeout=450, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.strip().splitlines()
    audit = re.fullmatch(
        r"accepted=(\d+) = succeeded=(\d+) \+ failed=1 \+ expired=1 \+ cancelled=1 \+ dead=0", lines[-1]
    )
    assert audit, lines[-1]
    accepted, succeeded = map(int, audit.groups())
    assert accepted >= 20
    assert accepted == succeeded + 3
    rows = [line for line in lines if re.match(r" *\d+/\d\d ", line)]
    assert len(rows) == accepted
    assert all(any(f" {lane} " in row for row in rows) for lane in ("critical", "high", "normal", "low"))
    answered = [row for row in rows if "succeeded" in row]
    assert next(row for row in answered if " capital " in row).count("Paris")
    last_critical = max(n for n, row in enumerate(answered) if " critical " in row)
    first_low = min(n for n, row in enumerate(answered) if " low " in row)
    assert last_critical < first_low
