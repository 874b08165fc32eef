"""Makes the parts of docs/performance.md that come from reports: the text between its markers.

The page is written by hand except the text between `<!-- bench:NAME:begin -->` and `<!-- bench:NAME:end -->`. NAME is
`targets` (of all reports), a report (`broker`: its machine, and those of its tables that are in
`SHOWN`), or a picture.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from bench.core.judged import digest
from bench.core.reports import Report, Table
from bench.core.tables import markdown, shown, targets_markdown
from bench.plots.catalogue import PICTURES, Picture
from bench.saved import BENCHMARKS, Reports, command

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
PICTURES_FOLDER = "performance"
"""Of the pictures, beside the page."""
BLOCK = re.compile(r"(<!-- bench:(\w+):begin -->\n)(.*?)(<!-- bench:\2:end -->)", re.DOTALL)
MARKER = re.compile(r"<!-- bench:(\w+):(?:begin|end) -->")


class PageError(Exception):
    """The page cannot be made; the message gives the reason and the remedy."""


def fill(text: str, reports: Reports) -> str:
    """Returns the page with every block filled.

    Raises:
        PageError: a block's name is unknown, a picture or a report has no place, or a marker has no partner.
    """
    makers = block_makers(reports)
    names = [found[2] for found in BLOCK.finditer(text)]
    markers = MARKER.findall(text)
    if len(markers) != 2 * len(names):
        raise PageError(
            f"markers of these blocks do not pair up: {', '.join(sorted(set(markers) - set(names)) or markers)}"
        )
    if unknown := [name for name in names if name not in makers]:
        raise PageError(f"no such block: {', '.join(unknown)}; there are {', '.join(makers)}")
    if absent := [name for name in makers if names.count(name) != 1]:
        raise PageError(f"each block must be there once: {', '.join(absent)}")
    return BLOCK.sub(lambda found: found[1] + makers[found[2]]() + "\n" + found[4], text)


def block_makers(reports: Reports) -> dict[str, Callable[[], str]]:
    """Returns the function that makes each block, by the block's name."""
    makers: dict[str, Callable[[], str]] = {"targets": partial(all_targets, reports)}
    for name in BENCHMARKS:
        makers[name] = partial(report_block, name, reports)
    for picture in PICTURES:
        makers[picture.name] = partial(picture_block, picture, reports)
    return makers


def refilled(text: str, kind: str, makers: Mapping[str, Callable[[], str]]) -> str:
    """Returns a page with all blocks of a kind made again, `<!-- KIND:NAME:begin -->` to `<!-- KIND:NAME:end -->`.

    Raises:
        PageError: a block's name is unknown.
    """
    block = re.compile(rf"(<!-- {kind}:(\w+):begin -->\n)(.*?)(<!-- {kind}:\2:end -->)", re.DOTALL)
    if unknown := [found[2] for found in block.finditer(text) if found[2] not in makers]:
        raise PageError(f"no such block: {', '.join(unknown)}; there are {', '.join(makers)}")
    return block.sub(lambda found: found[1] + makers[found[2]]() + "\n" + found[4], text)


def all_targets(reports: Reports) -> str:
    """The number of targets of each report that hold, those that are missed, and the measurements that were not run."""
    found = {name: reports[name][0] for name in BENCHMARKS if name in reports}
    held = {name: sum(target.holds for target in report.targets) for name, report in found.items()}
    counts = [f"{name} {held[name]} of {len(report.targets)}" for name, report in found.items()]
    listed = [
        replace(target, name=f"{name}: {target.name}")
        for name, report in found.items()
        for target in report.targets
        if not target.holds
    ]
    parts = [f"Targets that hold: {', '.join(counts)}. Those that are missed:", targets_markdown(listed)]
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
    report = reports[picture.report][0]
    if missing := picture.missing(report):
        return f"*No picture: this run left out {', '.join(missing)}.*"
    return f"![{picture.alt}]({PICTURES_FOLDER}/{picture.name}.svg)"


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


def sizes(report: Report) -> str:
    """Settings of a report, in one line."""
    settings = {name.replace("_", " "): value for name, value in report.settings.items() if name != "quick"}
    return f"Sizes: {'; '.join(f'{name} {plain(value)}' for name, value in settings.items())}."


def plain(value: Any) -> str:
    """A setting as text: lists with commas, mappings as name and value."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name.replace('_', ' ')} {plain(each)}" for name, each in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(plain(each) for each in value)
    if isinstance(value, str) and value.startswith("--"):
        return f"`{value}`"
    return str(value) if isinstance(value, bool | str) else shown(value)


def titled(table: Table) -> str:
    """A table under its title."""
    return f"**{table.title}**\n\n{markdown(table)}"


def not_run(name: str) -> str:
    """Text in place of a missing report."""
    return f"*No results of `{name}` yet: `{command(name)}` measures, `make bench-docs` writes them here.*"
