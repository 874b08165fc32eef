"""Write the tables and pictures of docs/performance.md from the reports in bench/results.

The page is written by hand except the text between `<!-- bench:NAME:begin -->` and `<!-- bench:NAME:end -->`, and the
pictures beside it. NAME is `targets` (of all reports), a report (`broker`: its machine, and those of its tables that
are in `SHOWN`), or a picture.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench.core.judged import digest
from bench.core.reports import FULL, ROOT, Report, Table
from bench.core.tables import markdown, targets_markdown
from bench.saved import BENCHMARKS, BadReport, Reports, command, read_reports, targets

PAGE = ROOT / "docs" / "performance.md"
PICTURES_FOLDER = PAGE.with_suffix("")
SHOWN = {
    "broker": "Queues side by side",
    "engine": "Engine: ",
    "front_end": "Front end: CPU µs a request of 64 tokens, whole",
    "scheduling": "Pickup|Pulls",
    "goodput": r"Urgent: 8 workers full of low, 10% urgent, \d|Tenants: 20|Deadlines|Sessions",
    "shards": "Costs|Fleets",
    "gateway": "Streams|By turns: what",
}
"""Beginnings of the titles of the tables that the page shows, by report. The result files have all tables."""
HEAD_BYTES = 4096
"""The fingerprint stands in an SVG's metadata, which come first."""


class PageError(Exception):
    """The page cannot be made; the message gives the reason and the remedy."""


@dataclass(frozen=True)
class Picture:
    """One picture.

    Attributes:
        name: name of its function in `bench.plots`, of its file, and of its place on the page.
        report: measurement with its data.
        needs: key of `Report.data` without which it cannot be drawn.
        alt: description for readers who cannot see it.
    """

    name: str
    report: str
    needs: str
    alt: str

    @property
    def path(self) -> Path:
        return PICTURES_FOLDER / f"{self.name}.svg"

    def fingerprint(self, reports: Reports) -> str:
        """Hash of what decides its look: the report, and the module that draws it."""
        drawn = hashlib.sha256(reports[self.report][1] + (ROOT / "bench" / "plots.py").read_bytes())
        return f"{self.report}.json sha256:{drawn.hexdigest()}"

    def stale(self, reports: Reports) -> bool:
        """True if it is not drawn, or from something else."""
        return not self.path.is_file() or self.fingerprint(reports).encode() not in self.path.read_bytes()[:HEAD_BYTES]

    def draw(self, reports: Reports) -> None:
        """Draw it into its file; needs matplotlib."""
        from bench import plots

        with plots.rules():
            figure = getattr(plots, self.name)(reports[self.report][0].data)
            plots.save(figure, self.path, self.fingerprint(reports))


PICTURES = (
    Picture(
        "broker_throughput",
        "broker",
        "systems",
        "Bulk enqueue and drain by one worker of streamfleet and other queues, as ratios to raw redis-py",
    ),
    Picture(
        "goodput_first_token",
        "goodput",
        "urgent",
        "Time from enqueueing to the first token of urgent requests on full engines, by the way to run both kinds",
    ),
)


def fill(text: str, reports: Reports) -> str:
    """Returns docs/performance.md with every block filled; raises as `refilled`."""
    makers: dict[str, Callable[[], str]] = {"targets": partial(all_targets, reports)}
    makers |= {name: partial(report_block, name, reports) for name in BENCHMARKS}
    makers |= {picture.name: partial(picture_block, picture, reports) for picture in PICTURES}
    return refilled(text, "bench", makers)


def refilled(text: str, kind: str, makers: Mapping[str, Callable[[], str]]) -> str:
    """Returns a page with all blocks of a kind made again, `<!-- KIND:NAME:begin -->` to `<!-- KIND:NAME:end -->`.

    Raises:
        PageError: a block's name is unknown, a block is not there once, or a marker has no partner.
    """
    block = re.compile(rf"(<!-- {kind}:(\w+):begin -->\n)(.*?)(<!-- {kind}:\2:end -->)", re.DOTALL)
    names = [found[2] for found in block.finditer(text)]
    markers = re.findall(rf"<!-- {kind}:(\w+):(?:begin|end) -->", text)
    if len(markers) != 2 * len(names):
        raise PageError(
            f"markers of these blocks do not pair up: {', '.join(sorted(set(markers) - set(names)) or markers)}"
        )
    if unknown := [name for name in names if name not in makers]:
        raise PageError(f"no such block: {', '.join(unknown)}; there are {', '.join(makers)}")
    if absent := [name for name in makers if names.count(name) != 1]:
        raise PageError(f"each block must be there once: {', '.join(absent)}")
    return block.sub(lambda found: found[1] + makers[found[2]]() + "\n" + found[4], text)


def all_targets(reports: Reports) -> str:
    """The number of targets of each report that hold, those that are missed, and the measurements that were not run."""
    found = [report for report, _ in reports.values()]
    counts = [f"{each.name} {sum(one.holds for one in each.targets)} of {len(each.targets)}" for each in found]
    missed = [target for target in targets(found) if not target.holds]
    parts = [f"Targets that hold: {', '.join(counts)}. Those that are missed:", targets_markdown(missed)]
    return "\n\n".join([*(parts if found else []), *(not_run(name) for name in BENCHMARKS if name not in reports)])


def report_block(name: str, reports: Reports) -> str:
    """Machine of a report, and its tables that the page shows. All targets stand together elsewhere."""
    if name not in reports:
        return not_run(name)
    report = reports[name][0]
    shown = [titled(table) for table in report.tables if re.match(SHOWN[name], table.title)]
    return "\n\n".join([about(report), *shown])


def picture_block(picture: Picture, reports: Reports) -> str:
    """A picture."""
    if picture.report not in reports:
        return not_run(picture.report)
    if picture not in drawable(reports):
        return f"*No picture: this run left out {picture.needs}.*"
    return f"![{picture.alt}]({PICTURES_FOLDER.name}/{picture.name}.svg)"


def about(report: Report) -> str:
    """Date and machine of a report, its commit, and whether the code that it judges has changed since."""
    machine = dict(report.machine)
    packages = machine.pop("packages", {})
    words = [
        str(machine.get("gpu", "")),
        str(machine.get("processor", "")),
        f"{machine.get('cores', '?')} cores",
        f"{machine.get('memory_gib', '?')} GiB",
        f"Python {machine.get('python', '?')}",
        *(f"{name} {version}" for name, version in packages.items()),
    ]
    stolen = machine.get("stolen_percent")
    busy = f" Steal: {stolen} % of the CPU time that was wanted." if stolen else ""
    small = " **Small** sizes." if report.settings.get("quick") else ""
    changed = "" if report.sources == digest(report.name) else "**, changed since**"
    commit = f" Code: {report.commit}{changed}." if report.commit else ""
    return f"Measured on {report.made}: {', '.join(word for word in words if word)}.{busy}{small}{commit}"


def titled(table: Table) -> str:
    """A table under its title."""
    return f"**{table.title}**\n\n{markdown(table)}"


def not_run(name: str) -> str:
    """Text in place of a missing report."""
    return f"*No results of `{name}` yet: `{command(name)}` measures, `make bench-docs` writes them here.*"


def drawable(reports: Reports) -> list[Picture]:
    """Pictures whose figures are in the reports."""
    return [each for each in PICTURES if each.report in reports and reports[each.report][0].data.get(each.needs)]


def left_over(reports: Reports) -> list[Path]:
    """Files of pictures that nothing draws any more."""
    drawn = {picture.path for picture in drawable(reports)}
    return [path for path in sorted(PICTURES_FOLDER.glob("*.svg")) if path not in drawn]


def check(reports: Reports, text: str) -> list[str]:
    """Lines about everything that is out of date."""
    same = PAGE.read_text(encoding="utf-8") == text
    wrong = [] if same else [f"{PAGE.name}: its tables are not those of the results"]
    stale = [picture for picture in drawable(reports) if picture.stale(reports)]
    wrong += [f"{picture.path.name}: not drawn from these results" for picture in stale]
    return wrong + [f"{path.name}: nothing draws it any more" for path in left_over(reports)]


def write(reports: Reports, text: str) -> None:
    """Write the page, and the pictures that are out of date."""
    for picture in drawable(reports):
        if picture.stale(reports):
            print(f"drawing {picture.path.name}", flush=True)
            picture.draw(reports)
    for path in left_over(reports):
        print(f"removing {path.name}: nothing draws it any more")
        path.unlink()
    PAGE.write_text(text, encoding="utf-8")


def main() -> int:
    """Write the page, or with `--check` tell if everything is up to date."""
    parser = argparse.ArgumentParser(prog="python -m bench.pages", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when something is out of date")
    try:
        reports = read_reports(FULL)
        text = fill(PAGE.read_text(encoding="utf-8"), reports)
        if parser.parse_args().check:
            wrong = check(reports, text)
            for line in [*wrong, "run: make bench-docs"] if wrong else []:
                print(line, file=sys.stderr)
            return 1 if wrong else 0
        write(reports, text)
    except (PageError, BadReport) as error:
        print(f"bench.pages: {error}", file=sys.stderr)
        return 1
    except ModuleNotFoundError as error:
        print(f"bench.pages: {error}; install it: make setup-bench", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
