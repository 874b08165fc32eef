"""Write the tables of `docs/protocol.md` that come from the code: the fields of an entry, and the endpoints.

.venv/bin/python tools/protocol_tables.py            write them
.venv/bin/python tools/protocol_tables.py --check    exit 1 when the page has others

The text between `<!-- NAME: made by make docs -->` and `<!-- end of NAME -->` is made; the rest is by hand.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from streamfleet.common.envelope import FIELDS
from streamfleet.common.protocol import ENDPOINTS

PAGE = Path(__file__).parent.parent / "docs" / "protocol.md"
BLOCK = re.compile(r"(<!-- (\w+): made by make docs -->\n).*?(<!-- end of \2 -->)", re.DOTALL)


def made() -> dict[str, str]:
    """Text of each block by its name."""
    rows = [f"| `{field.name}` | {field.rule} | {field.meaning} |" for field in FIELDS]
    return {
        "fields": "\n".join(["| field | rule | meaning |", "|---|---|---|", *rows]),
        "endpoints": ", ".join(f"`{each}`" for each in sorted(ENDPOINTS)) + ".",
    }


def main() -> int:
    """Write the blocks, or with `--check` tell whether they are fresh."""
    parser = argparse.ArgumentParser(description="Write the tables of docs/protocol.md.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when the page has others")
    check = parser.parse_args().check
    blocks, page = made(), PAGE.read_text(encoding="utf-8")
    fresh = BLOCK.sub(lambda found: f"{found[1]}{blocks.pop(found[2])}\n{found[3]}", page)
    if blocks or (check and fresh != page):
        print(f"docs/protocol.md needs: {', '.join(blocks) or 'make docs'}", file=sys.stderr)
        return 1
    if not check:
        PAGE.write_text(fresh, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
