"""docs/performance.md is what the results say, and `make bench-quick` tells a miss from a failure."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from textwrap import dedent
from xml.etree import ElementTree as ET

import pytest

from bench import pages, quick
from bench.core import judged
from bench.core.reports import Report, Table, Target
from bench.pages import PICTURES, PageError, about, fill
from bench.saved import BENCHMARKS, BadReport, Reports, command, read_reports

FIRST = PICTURES[0]
TABLE = "Queues side by side: in a test"
"""A title of a table that the page shows of each report here."""
TARGETS = [
    Target("fast", 0.8, 0.75, "at least", "x"),
    Target("small", 800, 760, "at most", "B", "a record for each id"),
]


def report(name: str, **data: object) -> Report:
    tables = [Table(title, ["n"], [{"n": 1}]) for title in (TABLE, "Settings of each queue")]
    machine = {"processor": "Abacus", "cores": 2, "packages": {"redis": "8"}, "stolen_percent": 12.5}
    return Report(name, "2026-01-31", machine, {"jobs": 10_000}, tables, TARGETS, dict(data))


def saved(tmp_path: Path, *reports: Report) -> Reports:
    for each in reports:
        each.save(tmp_path)
    return read_reports(tmp_path)


def template() -> str:
    """A page with every block, empty."""
    names = ["targets", *BENCHMARKS, *(picture.name for picture in PICTURES)]
    return "# Page\n" + "\n".join(f"<!-- bench:{name}:begin -->\n<!-- bench:{name}:end -->\n" for name in names)


def block(text: str, name: str) -> str:
    return text.partition(f"<!-- bench:{name}:begin -->")[2].partition(f"<!-- bench:{name}:end -->")[0]


def test_what_was_not_measured_names_its_command(tmp_path: Path) -> None:
    text = fill(template(), read_reports(tmp_path))
    for name in BENCHMARKS:
        assert f"`{command(name)}`" in block(text, name)
        assert f"`{command(name)}`" in block(text, "targets")


def test_a_report_brings_its_machine_targets_and_tables(tmp_path: Path) -> None:
    text = fill(template(), saved(tmp_path, report(FIRST.report, **{FIRST.needs: 1})))
    assert "2026-01-31: Abacus, 2 cores" in block(text, FIRST.report)
    assert "Steal: 12.5 %" in block(text, FIRST.report)
    assert "| broker: small | at most 760 B | 800 B | MISS | a record for each id |" in block(text, "targets")
    assert f"![{FIRST.alt}](performance/{FIRST.name}.svg)" in block(text, FIRST.name)
    assert f"**{TABLE}**" in block(text, FIRST.report)
    assert "Settings" not in block(text, FIRST.report), "the result file alone has it"


def test_of_the_targets_the_page_lists_those_that_are_missed(tmp_path: Path) -> None:
    text = block(fill(template(), saved(tmp_path, report("broker"))), "targets")
    assert "broker 1 of 2" in text
    assert "broker: small" in text
    assert "fast" not in text


def test_a_run_that_left_something_out_has_no_picture_of_it(tmp_path: Path) -> None:
    text = fill(template(), saved(tmp_path, report(FIRST.report)))
    assert "![" not in block(text, FIRST.name)
    assert FIRST.needs in block(text, FIRST.name)


def test_a_report_names_its_commit_and_says_where_the_code_has_changed_since(tmp_path: Path) -> None:
    one = report("broker")
    one.commit, one.sources = "0123abcd", judged.digest("broker")
    assert about(one).endswith(" Code: 0123abcd.")
    one.sources = judged.digest("broker", tmp_path)
    assert about(one).endswith(" Code: 0123abcd**, changed since**.")


def test_the_digest_of_what_is_judged_sees_a_change_of_any_of_it(tmp_path: Path) -> None:
    script = tmp_path / "common/streamfleet/common/lua/lib/one.lua"
    script.parent.mkdir(parents=True)
    found = [judged.digest("broker", tmp_path)]
    for text in ("return 1", "return 2"):
        script.write_text(text, encoding="utf-8")
        found.append(judged.digest("broker", tmp_path))
    assert len(set(found)) == 3
    page = tmp_path / "gateway/streamfleet/gateway/page.py"
    page.parent.mkdir(parents=True)
    page.write_text("1", encoding="utf-8")
    assert judged.digest("broker", tmp_path) == found[2] != judged.digest("gateway", tmp_path)
    assert judged.commit("broker", tmp_path) == "", "no git there"


def test_filling_twice_changes_nothing(tmp_path: Path) -> None:
    reports = saved(tmp_path, *(report(name, **{FIRST.needs: 1}) for name in BENCHMARKS))
    once = fill(template(), reports)
    assert fill(once, reports) == once


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text.replace("bench:broker:", "bench:borker:"), "no such block: borker"),
        (lambda text: text.replace("<!-- bench:broker:end -->", ""), "do not pair up: broker"),
        (lambda text: text.replace("<!-- bench:broker:begin -->\n<!-- bench:broker:end -->", ""), "once: broker"),
        (lambda text: text + template(), "once: targets"),
    ],
)
def test_a_marker_that_is_wrong_is_named(change: object, message: str) -> None:
    assert callable(change)
    with pytest.raises(PageError, match=message):
        fill(change(template()), {})


def test_a_file_that_is_no_report_says_how_to_make_it_anew(tmp_path: Path) -> None:
    (tmp_path / "engine.json").write_text("{}", encoding="utf-8")
    with pytest.raises(BadReport, match=r"engine\.json is no report.*make bench-engine"):
        read_reports(tmp_path)


def test_commands_on_the_page_exist(repository: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (repository / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = set(re.findall(r"`make ([a-z-]+)|^make ([a-z-]+)", pages.PAGE.read_text(encoding="utf-8"), re.MULTILINE))
    assert {first or second for first, second in named} <= targets


# -- pictures ----------------------------------------------------------------------------------------------


def test_committed_pictures_hold_text_on_white_and_no_dates(repository: Path) -> None:
    for path in (repository / "docs/performance").glob("*.svg"):
        text = path.read_text(encoding="utf-8")
        names = {element.tag.rpartition("}")[2] for element in ET.fromstring(text).iter()}  # noqa: S314 - our own file
        assert "text" in names, path
        assert "date" not in names, path
        assert "fill: #ffffff" in text, path


@pytest.fixture
def pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of pictures, empty."""
    monkeypatch.setattr(pages, "PICTURES_FOLDER", tmp_path / "pictures")
    (tmp_path / "pictures").mkdir()
    return tmp_path / "pictures"


def test_other_results_or_another_drawing_make_a_picture_stale(tmp_path: Path, pictures: Path) -> None:
    whole = report(FIRST.report, **{FIRST.needs: 1})
    reports = saved(tmp_path, whole)
    assert FIRST.stale(reports), "not drawn yet"
    FIRST.path.write_text(f"<svg><desc>{FIRST.fingerprint(reports)}</desc></svg>", encoding="utf-8")
    assert not FIRST.stale(reports)
    whole.settings = {"jobs": 20_000}
    assert FIRST.stale(saved(tmp_path, whole))
    assert pages.left_over({}) == [pictures / FIRST.path.name], "nothing draws it without results"


def test_the_same_figures_are_drawn_alike_every_time(tmp_path: Path, pictures: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs matplotlib: make setup-bench")
    ours = {"name": "ours", "title": "streamfleet", "kind": "ours", "enqueue_of_raw": 0.4, "drain_of_raw": 0.5}
    urgent = {"a case": {"urgent alone": [1.0, 2.0]}}
    reports = saved(tmp_path, report("broker", systems=[ours]), report("goodput", urgent=urgent))
    drawn = []
    for _ in range(2):
        for picture in PICTURES:
            picture.draw(reports)
        drawn.append([picture.path.read_bytes() for picture in PICTURES])
    assert drawn[0] == drawn[1]
    assert b"streamfleet</text>" in drawn[0][0]
    assert not any(picture.stale(reports) for picture in PICTURES)


@pytest.fixture
def measurements(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a `bench` of its own, for measurements that do as a test says."""
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench/__init__.py").touch()
    monkeypatch.setattr(quick, "ROOT", tmp_path)
    monkeypatch.setattr(quick, "QUICK", tmp_path / "out")
    (tmp_path / "out").mkdir()
    monkeypatch.setattr(sys, "argv", ["quick", "--only", "broker,engine"])
    for name in ("broker", "engine"):
        measurement(tmp_path, name, f"report = {report(name).save(tmp_path).read_text(encoding='utf-8')!r}")
    return tmp_path


def measurement(folder: Path, name: str, code: str) -> None:
    """Write a measurement that runs this code, and writes `report` if that is set."""
    main = """
        import pathlib, sys
        assert sys.argv[1:3] == ["--quick", "--out"]
        report = None
        {code}
        if report:
            pathlib.Path(sys.argv[3], "{name}.json").write_text(report)
    """
    (folder / "bench" / f"{name}.py").write_text(dedent(main).format(code=code, name=name), encoding="utf-8")


def test_a_miss_is_shown_and_is_no_error(measurements: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert quick.main() == 0
    shown = capsys.readouterr().out
    assert shown.count("hold") == 2
    assert shown.count("MISS") == 2


@pytest.mark.parametrize(
    ("code", "problem"), [("sys.exit(7)", "status 7"), ("1 / 0", "status 1"), ("pass", "left no report")]
)
def test_a_measurement_that_fails_is_an_error_and_the_others_run(
    measurements: Path, capsys: pytest.CaptureFixture[str], code: str, problem: str
) -> None:
    report("broker").save(measurements / "out")
    measurement(measurements, "broker", code)
    assert quick.main() == 1
    shown = capsys.readouterr().out
    assert "FAILED" in shown
    assert problem in shown
    assert shown.count("hold") == 1, "not the figures of an earlier run"


def test_a_measurement_that_hangs_is_interrupted(measurements: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import threading; open('started', 'w').close(); threading.Event().wait()"
    measurement(measurements, "broker", code)
    monkeypatch.setattr(quick, "LIMIT_S", 1.0)
    monkeypatch.setattr(quick, "STOP_S", 600.0)
    assert quick.run_one("broker") == "did not end within 1 s"


def test_measurements_that_do_not_exist_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["quick", "--only", "broker,brokr"])
    with pytest.raises(SystemExit) as ended:
        quick.main()
    assert ended.value.code == 2


# -- what it stands on -------------------------------------------------------------------------------------


@pytest.mark.parametrize("other", ["dev", "vllm"])
def test_pins_are_those_of_the_other_profiles(repository: Path, other: str) -> None:
    """All go into one environment, in any order."""
    mine, theirs = (pins(repository / f"requirements/{name}.txt") for name in ("bench", other))
    assert {name: pin for name, pin in mine.items() if name in theirs} == {
        name: pin for name, pin in theirs.items() if name in mine
    }


def pins(path: Path) -> dict[str, set[str]]:
    """Lines by the name of their package; one has several where it depends on the Python."""
    found: dict[str, set[str]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        found.setdefault(line.partition("==")[0], set()).add(line)
    return found
