"""Write the tables of docs/scaling.md from the report in bench/results.

The text between `<!-- shards:NAME:begin -->` and `<!-- shards:NAME:end -->` is made; the rest is by hand. NAME is
`about`, or the first word of a table's title in small letters.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from bench.blocks import PageError, about, refilled, titled
from bench.core.reports import FULL, ROOT, Report, load

PAGE = ROOT / "docs" / "scaling.md"


def fill(text: str, report: Report) -> str:
    """Returns the page with every block filled.

    Raises:
        PageError: a block's name is unknown.
    """
    makers: dict[str, Callable[[], str]] = {"about": partial(about, report)}
    makers |= {re.split(r"\W", table.title)[0].lower(): partial(titled, table) for table in report.tables}
    return refilled(text, "shards", makers)


def main() -> int:
    """Write the page, or with `--check` tell if it is up to date."""
    known = argparse.ArgumentParser(prog="python -m bench.shards.page", description=__doc__)
    known.add_argument("--check", action="store_true", help="write nothing; exit 1 when the page is out of date")
    known.add_argument("--results", type=Path, default=FULL, metavar="DIR", help="where shards.json is")
    args = known.parse_args()
    before = PAGE.read_text(encoding="utf-8")
    try:
        after = fill(before, load(args.results / "shards.json"))
    except (PageError, OSError, ValueError, KeyError, TypeError) as error:
        print(f"bench.shards.page: {error}; measure with `make bench-shards`", file=sys.stderr)
        return 1
    if args.check and after != before:
        print(
            f"{PAGE.name}: its tables are not those of the results; run: python -m bench.shards.page", file=sys.stderr
        )
        return 1
    if not args.check:
        PAGE.write_text(after, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
