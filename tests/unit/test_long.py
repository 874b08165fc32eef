"""The long runs: whose turn it is, verdicts, second tries, cuts, what is kept, and how old it is."""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.fault.mutations import MUTATIONS
from tests.hostile.__main__ import Round, arguments, verdict
from tests.hostile.run import GOOD, Ended
from tests.long import page
from tests.long.__main__ import CUT_OFF, PASSED_OVER, RED, Ran, judge, main, result, tried, turn
from tests.long.others import NOISY, Usage, noise, share, usage
from tests.long.parts import Part, part
from tests.long.parts import share as share_of
from tests.long.results import FOLDER, GREEN, PAGE, ages, write
from tests.long.rows import ROWS, Row

ROW = Row("fault", "tests.fault")
AWAITED = Row("fault", "tests.fault", "somebody mends it")
FAKE = """\
import pathlib, subprocess, sys, time
tries = pathlib.Path("build"); tries.mkdir(exist_ok=True); tries /= sys.argv[1]
tries.write_text((tries.read_text() if tries.exists() else "") + " ".join(sys.argv[1:]) + "\\n")
if sys.argv[1] == "sleeps":
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    pathlib.Path("build/pid").write_text(str(child.pid))
    time.sleep(60)
print("figures of", *sys.argv[1:])
sys.exit({"breaks": 1, "elsewhere": 77, "flaky": len(tries.read_text().splitlines()) < 2}.get(sys.argv[1], 0))
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository of one commit, in which `fake` stands for a long run."""
    (tmp_path / "fake.py").write_text(FAKE)
    (tmp_path / ".gitignore").write_text("build/\n__pycache__/\n")
    git(tmp_path, "init", "--quiet")
    commit(tmp_path)
    return tmp_path


def git(root: Path, *words: str) -> str:
    name = ("-c", "user.name=t", "-c", "user.email=t@example.invalid")
    return subprocess.run(["git", *name, *words], cwd=root, check=True, capture_output=True, text=True).stdout.strip()


def commit(root: Path) -> str:
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--allow-empty", "--message", "x")
    return git(root, "rev-parse", "HEAD")


def kept(root: Path, target: str) -> dict[str, object]:
    return dict(json.loads((root / FOLDER / f"{target}.json").read_text()))


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_all_parts_together_are_the_whole_and_each_item_is_in_one(count: int) -> None:
    parts = [share_of(MUTATIONS, Part(number, count)) for number in range(1, count + 1)]
    assert sorted(each.name for part in parts for each in part) == sorted(each.name for each in MUTATIONS)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_what_weighs_much_is_alone() -> None:
    assert [share_of([540, 60, 60, 60], Part(number, 2), float) for number in (1, 2)] == [[540], [60, 60, 60]]


@pytest.mark.parametrize("text", ["", "0/2", "3/2", "1", "1/0", "-1/2", "1/2/3", "one/two", "1/99999"])
def test_a_part_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="i/n"):
        part(text)
    assert part("2/4") == (2, 4)


def test_each_row_has_its_turn_and_no_git_is_the_first() -> None:
    assert [turn(ROWS, str(count)) for count in range(712, 712 + len(ROWS))] != list(ROWS)
    assert {turn(ROWS, str(count)) for count in range(712, 712 + len(ROWS))} == set(ROWS)
    assert turn(ROWS, None) == ROWS[0]


def test_every_row_is_a_program_and_a_target_of_the_makefile(repository: Path) -> None:
    makefile = (repository / "Makefile").read_text(encoding="utf-8")
    for row in ROWS:
        module = row.command.split()[0]
        assert f"\n{row.target}: " in makefile
        assert module in makefile
        spec = find_spec(module)
        assert spec is not None
        assert spec.submodule_search_locations is None or find_spec(f"{module}.__main__") is not None


def test_the_rows_of_test_long_run_each_file_once_without_vllm_and_once_with_it(repository: Path) -> None:
    files = sorted(path.relative_to(repository) for path in (repository / "tests").rglob("test_*.py"))
    parser = argparse.ArgumentParser()
    parser.add_argument("paths", nargs="*")
    parser.add_argument("--ignore", action="append", default=[])
    parser.add_argument("-m", dest="expression")
    run: dict[str, list[Path]] = {"long and not needs_vllm": [], "long and needs_vllm": []}
    for row in ROWS:
        if row.target == "test-long":
            given, _ = parser.parse_known_args(shlex.split(row.command)[1:])
            paths = given.paths or ["tests"]
            run[given.expression] += [
                file for file in files
                if any(map(file.is_relative_to, paths)) and not any(map(file.is_relative_to, given.ignore))
            ]  # fmt: skip
    assert [sorted(each) for each in run.values()] == [files, files]


# -- verdicts ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "status", "said", "expected"),
    [
        (ROW, 0, "ok", GREEN),
        (ROW, 1, "NOT OK", RED),
        (ROW, 2, "error: unrecognized arguments", RED),
        (ROW, -9, "", RED),
        (ROW, None, "half of it", CUT_OFF),
        (ROW, 77, "needs npm", PASSED_OVER),
        (ROW, 0, f"ok: times=3.70 ({NOISY}: others used 41% of the CPUs)", NOISY),
        (ROW, 1, f"NOT OK: terminal=9 ({NOISY})", RED),
        (AWAITED, 1, "NOT OK", GREEN),
        (AWAITED, 0, "ok", RED),
        (AWAITED, None, "", CUT_OFF),
    ],
)
def test_a_verdict(row: Row, status: int | None, said: str, expected: str) -> None:
    assert judge(row, status, said) == expected


@pytest.mark.parametrize(
    ("verdicts", "expected", "tries"), [((GREEN,), GREEN, 1), ((RED, GREEN), GREEN, 2), ((RED, RED), RED, 2),
                                        ((CUT_OFF,), CUT_OFF, 1), ((RED, CUT_OFF), CUT_OFF, 2)]
)  # fmt: skip
def test_only_a_red_part_runs_again(verdicts: tuple[str, ...], expected: str, tries: int) -> None:
    left = [Ran(verdict, 1.0, "") for verdict in verdicts]
    assert tried(lambda: left.pop(0)) == Ran(expected, float(tries), "")
    assert left == []


def test_the_worst_part_is_the_verdict_on_a_target() -> None:
    ran = [Ran(GREEN, 1.0, "a"), Ran(NOISY, 2.0, "b"), Ran(CUT_OFF, 20.0, "c"), Ran(RED, 0.5, "d")]
    for count, expected in enumerate((GREEN, NOISY, CUT_OFF, RED), 1):
        assert result(ran[:count], "c")["verdict"] == expected
    assert result(ran, "c")["figures"] == ["a", "b", "c", "d"]


@pytest.mark.parametrize(
    ("all_s", "own_s", "others"), [(1.0, 1.0, 0.0), (20.0, 18.5, 0.075), (20.0, 10.0, 0.5), (0.0, 1.0, 0.0)]
)
def test_the_share_of_others(all_s: float, own_s: float, others: float) -> None:
    found = share(Usage(0, 100, 7, 2), Usage(10, 100 + all_s, 7 + own_s, 2))
    assert found == pytest.approx(others)
    assert (noise(found) == "") == (others <= 0.1)
    assert noise(share(None, Usage(10, 1, 1, 2))).startswith(NOISY)


def test_stolen_time_is_that_of_others_and_children_are_our_own(tmp_path: Path) -> None:
    def process(pid: int, parent: int, ticks: str) -> None:
        (tmp_path / str(pid)).mkdir()
        (tmp_path / f"{pid}/stat").write_text(f"{pid} (a ) b) S {parent} 1 1 0 -1 0 0 0 0 0 {ticks} 20 0 1 0")

    (tmp_path / "stat").write_text("cpu  100 20 30 9000 500 4 6 40 7 0\ncpu0 1 1\ncpu1 1 1\nintr 5\n")
    process(10, 1, "1 2 0 0")
    process(11, 10, "10 20 30 40")
    process(12, 11, "100 0 0 0")
    process(13, 1, "5000 0 0 0")
    found = usage(tmp_path, own=10)
    assert found is not None
    assert (found.all_s, found.own_s, found.cpus) == (2.0, 2.03, 2)
    assert usage(tmp_path / "nowhere") is None


def rounds(*times: float) -> list[Round]:
    def ends(ms: float) -> dict[str, Ended | None]:
        return {f"good-{number}": Ended(GOOD, "succeeded", "", 200, int(ms)) for number in range(9)}

    return [Round(ends(100), ends(100 * each)) for each in times]


def test_no_round_of_hostile_bodies_is_without_a_good_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert arguments(["--good", "3"]).rounds == 3
    assert arguments(["--rounds", "2"]).rounds == 2
    for given in (["--good", "0"], ["--rounds", "0"]):
        with pytest.raises(SystemExit):
            arguments(given)
        assert "at least 1" in capsys.readouterr().err


def test_hostile_bodies_are_judged_by_the_median_of_the_rounds(capsys: pytest.CaptureFixture[str]) -> None:
    quiet = {"alive": True, "outstanding": 0, "noise": ""}
    assert verdict(rounds(9.0, 1.5, 1.5), **quiet) == 0  # type: ignore[arg-type]
    assert verdict(rounds(1.5, 4.0, 4.0), **quiet) == 1  # type: ignore[arg-type]
    assert verdict(rounds(4.0), alive=True, outstanding=0, noise=NOISY) == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith(f"times=4.00 ({NOISY})")
    assert verdict(rounds(1.0), alive=True, outstanding=1, noise=NOISY) == 1, "what is no matter of time"


def test_the_age_of_the_last_green_run(root: Path) -> None:
    first = git(root, "rev-parse", "HEAD")
    second = commit(root)
    for target, at, what in [("a", first, GREEN), ("b", first, GREEN), ("b", second, RED), ("c", "f" * 40, GREEN),
                                ("d", second, RED), ("e", f"{second}-changed", GREEN)]:  # fmt: skip
        write(root, target, {"commit": at, "verdict": what})
    commit(root)
    assert [line.split(maxsplit=1)[1] for line in list(ages(root, "abcdef"))[1:]] == [
        "2 commits ago", "2 commits ago; later red", "unknown", "never; later red", "unknown", "never",
    ]  # fmt: skip
    clone = root / "build/clone"
    git(root, "clone", "--quiet", "--depth=1", f"file://{root}", str(clone))
    assert list(ages(clone, "a"))[1].split() == ["a", "unknown"], "a shallow clone"


def test_long_runs_write_a_file_for_each_target(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [Row("good", "fake one --seed {seed}"), Row("good", "fake two"), Row("bad", "fake breaks --seed {seed}"),
            Row("podless", "fake elsewhere"), Row("shaky", "fake flaky")]  # fmt: skip
    assert main([], rows, root) == 1
    said = capsys.readouterr().out
    assert kept(root, "good") | {"date": "", "minutes": 0} == {
        "date": "", "commit": git(root, "rev-parse", "HEAD"), "minutes": 0, "verdict": GREEN,
        "figures": [(root / "build/one").read_text().strip().replace("one", "figures of one"), "figures of two"],
        "last_green": git(root, "rev-parse", "HEAD"),
    }  # fmt: skip
    assert (kept(root, "bad")["verdict"], kept(root, "bad")["last_green"]) == (RED, "")
    assert len(set((root / "build/breaks").read_text().splitlines())) == 1, "both tries have one seed"
    assert len((root / "build/breaks").read_text().splitlines()) == 2
    assert kept(root, "shaky")["verdict"] == GREEN
    assert not (root / FOLDER / "podless.json").exists()
    assert "cannot run here  fake elsewhere\n  figures of elsewhere" in said
    assert main(["good"], rows, root) == 0, "the files of the first run are no change"
    assert "changed" not in str(kept(root, "good")["commit"])
    (root / "fake.py").write_text(FAKE + "# changed\n")
    assert main(["good"], rows, root) == 0
    assert str(kept(root, "good")["commit"]).endswith("-changed")


def test_the_page_shows_the_last_results(repository: Path) -> None:
    text = (repository / PAGE).read_text(encoding="utf-8")
    assert page.filled(text, repository) == text, "run: python -m tests.long.page"


def test_a_turn_and_half_a_target_write_no_file(root: Path) -> None:
    rows = [Row("good", "fake one"), Row("alone", "fake two"), Row("good", "fake three")]
    assert main(["--turn"], rows, root) == 0
    assert [path.name for path in (root / "build").iterdir()] == ["two"], "of three rows, after one commit"
    assert main(["good", "--part", "1/2"], rows, root) == 0
    assert not (root / FOLDER).exists()


def test_a_part_that_takes_too_long_is_cut_off_with_its_children(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    began = time.monotonic()
    assert main([], [Row("slow", "fake sleeps"), Row("good", "fake one")], root, limit_s=2.0) == 0
    assert time.monotonic() - began < 30
    assert kept(root, "slow")["verdict"] == CUT_OFF
    assert "cut off  fake sleeps" in capsys.readouterr().out
    pid = (root / "build/pid").read_text()
    state = Path(f"/proc/{pid}/stat")
    assert not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z"
