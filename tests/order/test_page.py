"""docs/order.md has each rule once, with the sentence that it has here."""

from __future__ import annotations

import re
from pathlib import Path

from tests.order.rules import RULES


def test_the_page_has_the_rules_of_the_model(repository: Path) -> None:
    page = (repository / "docs/order.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^- `(\w+)`: (.+)$", page, re.MULTILINE)) == sorted(RULES.items())
