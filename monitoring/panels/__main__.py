"""Write monitoring/dashboards/*.json, the dashboards for Grafana, from the panels in this package.

python -m monitoring.panels            write them
python -m monitoring.panels --check    exit 1 when one is not what would be written
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from monitoring.panels import DASHBOARDS
from monitoring.panels.grafana import rendered

FOLDER = Path(__file__).parents[1] / "dashboards"


def files() -> dict[Path, str]:
    """Each dashboard's file, and its content."""
    return {
        FOLDER / f"{each.uid}.json": json.dumps(rendered(each), indent=1, ensure_ascii=False) + "\n"
        for each in DASHBOARDS
    }


def main() -> int:
    """Write or check them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when a file is out of date")
    if parser.parse_args().check:
        stale = [path.name for path, text in files().items() if not path.is_file() or path.read_text("utf-8") != text]
        if stale:
            print(
                f"{', '.join(stale)}: not what python -m monitoring.panels would write; run: make docs", file=sys.stderr
            )
        return int(bool(stale))
    FOLDER.mkdir(parents=True, exist_ok=True)
    for path, text in files().items():
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
