"""`streamfleet demo-gateway`, as `make demo-gateway` runs it but for the engine, which is simulated here."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

pytestmark = pytest.mark.timeout(180)


def test_curl_the_sdk_a_batch_a_webhook_and_the_page() -> None:
    """Each step's own words, and that nothing was not as it should be."""
    command = [sys.executable, "-m", "streamfleet.cli", "demo-gateway", "--engine", "simulated"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=170, check=False)
    shown = done.stdout
    assert done.returncode == 0, shown + done.stderr
    steps = dict(zip(*[iter(re.split(r"^([1-8])/8 ", shown, flags=re.MULTILINE)[1:])] * 2, strict=True))
    assert sorted(steps) == list("12345678")

    assert re.search(r"^    \$ streamfleet gateway keys create demo\n    sf-\S{40,}$", steps["3"], re.MULTILINE)
    chat, stream = steps["5"].split("/chat/completions")[1:]
    assert '"content":"' in chat
    assert re.findall(r"^    data: (.*)", stream, re.MULTILINE)[-1] == "[DONE]"
    assert len(re.findall(r'^    data: .*"delta":{"content":', stream, re.MULTILINE)) >= 3
    assert len(re.findall(r"^    → \S", steps["5"], re.MULTILINE)) == 2

    assert re.search(r"^    answer: \S", steps["6"], re.MULTILINE)
    assert re.search(r"^    stream: [^|]*(\|[^|]+){3,}", steps["6"], re.MULTILINE)

    assert "completed: 8 of 8" in steps["7"]
    for number in range(1, 9):
        assert len(re.findall(rf'"custom_id": "line-{number}", … "content": "\[simulated\] \w', steps["7"])) == 1
    assert '"type":"batch.completed"' in steps["7"]
    assert "→ its signature is right" in steps["7"]

    assert "200 text/html" in steps["8"]
    assert re.search(r"The page: +http://127\.0\.0\.1:\d+/ui$", steps["8"], re.MULTILINE)
    assert re.search(r"Operator key: +sf-\S{40,}$", steps["8"], re.MULTILINE)
    last = shown.strip().splitlines()[-1]
    assert last == "accepted=12 = succeeded=12 + failed=0 + expired=0 + cancelled=0 + dead=0"
