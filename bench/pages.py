"""Write the tables and pictures of docs/performance.md from the reports in bench/results.

The text between the page's markers (`bench.blocks`) and the pictures beside it are made; the rest is by hand.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from bench.blocks import PICTURES_FOLDER, PageError, fill
from bench.core.reports import FULL, ROOT
from bench.plots.catalogue import PICTURES, Picture, fingerprint_of
from bench.saved import BENCHMARKS, BadReport, Reports, command, read_reports

PAGE = ROOT / "docs" / "performance.md"
EXAMPLES = """\
examples:
  make bench-docs                                    the page and its pictures, from bench/results
  python -m bench.pages --check                      exit 1 when they are not what would be written
  python -m bench.pages --results build/bench/quick --out build/bench/page
                                                     a page of the small sizes, to look at
"""


def stale(reports: Reports, folder: Path) -> list[Picture]:
    """Pictures that differ from those that would be drawn now."""
    return [
        picture
        for picture in drawable(reports)
        if fingerprint_of(folder / f"{picture.name}.svg") != wanted(picture, reports)
    ]


def drawable(reports: Reports) -> list[Picture]:
    """Pictures whose figures are in the reports."""
    return [each for each in PICTURES if each.report in reports and not each.missing(reports[each.report][0])]


def wanted(picture: Picture, reports: Reports) -> str:
    """The fingerprint that a picture should have."""
    return picture.fingerprint(reports[picture.report][1])


def left_over(reports: Reports, folder: Path) -> list[Path]:
    """Files of pictures that no module draws any more."""
    names = {f"{picture.name}.svg" for picture in drawable(reports)}
    return [path for path in sorted(folder.glob("*.svg")) if path.name not in names]


def check(reports: Reports, page: Path, text: str) -> list[str]:
    """Lines about everything that is out of date."""
    folder = page.parent / PICTURES_FOLDER
    same = page.is_file() and page.read_text(encoding="utf-8") == text
    wrong = [] if same else [f"{page.name}: its tables are not those of the results"]
    wrong += [f"{picture.name}.svg: not drawn from these results" for picture in stale(reports, folder)]
    wrong += [f"{path.name}: nothing draws it any more" for path in left_over(reports, folder)]
    return wrong


def write(reports: Reports, page: Path, text: str, *, everything: bool) -> None:
    """Write the page, and the pictures that are out of date, or all of them."""
    folder = page.parent / PICTURES_FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    for picture in drawable(reports) if everything else stale(reports, folder):
        print(f"drawing {picture.name}.svg", flush=True)
        try:
            picture.draw(reports[picture.report][0], folder / f"{picture.name}.svg", wanted(picture, reports))
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise PageError(
                f"{picture.report}.json does not have what bench/plots/{picture.name}.py draws ({error!r}); "
                f"measure again ({command(picture.report)}), or mend the drawing"
            ) from error
    for path in left_over(reports, folder):
        print(f"removing {path.name}: nothing draws it any more")
        path.unlink()
    page.write_text(text, encoding="utf-8")


def main() -> int:
    """Write the page, or with `--check` tell if everything is up to date."""
    args = arguments()
    page = args.out / PAGE.name if args.out else PAGE
    try:
        reports = read_reports(args.results)
        text = fill(PAGE.read_text(encoding="utf-8"), reports)
        if args.check:
            wrong = check(reports, page, text)
            for line in [*wrong, "run: make bench-docs"] if wrong else []:
                print(line, file=sys.stderr)
            return 1 if wrong else 0
        write(reports, page, text, everything=args.all)
    except (PageError, BadReport) as error:
        print(f"bench.pages: {error}", file=sys.stderr)
        return 1
    except ModuleNotFoundError as error:
        print(f"bench.pages: {error}; install it: make setup-bench", file=sys.stderr)
        return 1
    for name in BENCHMARKS:
        if name not in reports:
            print(f"no {args.results.name}/{name}.json: run {command(name)}")
    return 0


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.pages",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when something is out of date")
    parser.add_argument("--all", action="store_true", help="draw every picture, those that are up to date too")
    parser.add_argument(
        "--results", type=Path, default=FULL, metavar="DIR", help="reports to show (default: bench/results)"
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="write a copy of the page and its pictures there instead"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
