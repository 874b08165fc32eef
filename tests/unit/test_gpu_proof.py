"""bench.gpu: what fits into the minutes, in which order, what is kept, the table, the page, what is missing."""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bench.core.reports import Report, load
from bench.gpu import __main__ as command
from bench.gpu import nvidia, page, tables, wheels
from bench.gpu import pieces as measured
from bench.gpu.pieces import (
    ANSWERS,
    BARE,
    DRY_SIZES,
    GPU_SIZES,
    KILL,
    ROUND,
    SERVE,
    SIZES,
    STREAMS,
    WORKER,
    freed,
    speed_of,
)
from bench.gpu.schedule import Found, OutOfTime, Piece, Prover, fitting
from bench.pages import PageError


class Clock:
    """Time that passes only when it is told to."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def pass_s(self, seconds: float) -> None:
        self.now_s += seconds


def piece(name: str, step: int, engine: str, seconds: float = 10.0) -> Piece:
    return Piece(name, step, engine, seconds, lambda _: {})


def names(pieces: list[Piece]) -> list[str]:
    return [each.name for each in pieces]


ALL = [piece("1", 1, "a"), piece("2a", 2, "a"), piece("6", 6, "a"), piece("1 end", 1, "a"), piece("2b", 2, "b")]
"""Of steps 1, 2 and 6, on two engines."""


@pytest.mark.parametrize(
    ("time_s", "chosen"),
    [
        (250, ["1", "2a", "6", "1 end", "2b"]),
        (249, ["1", "2a", "1 end", "2b"]),
        (239, ["1", "2a", "6", "1 end"]),
        (139, ["1", "6", "1 end"]),
        (129, ["1", "1 end"]),
        (119, ["6"]),
        (109, []),
    ],
)
def test_the_most_valuable_steps_are_chosen_and_whole_ones_first(time_s: float, chosen: list[str]) -> None:
    assert names(fitting(ALL, time_s, start_s=100)) == chosen


def test_the_usual_minutes_hold_all_steps_in_three_starts() -> None:
    for sizes, minutes in ((GPU_SIZES, 20), (DRY_SIZES, 6)):
        every = measured.pieces(sizes)
        assert fitting(every, minutes * 60, sizes.start_s) == every
    every = measured.pieces(GPU_SIZES)
    assert [each.engine for each in every] == sorted([each.engine for each in every], key=[WORKER, SERVE, BARE].index)
    assert {each.step for each in fitting(every, 7.5 * 60, GPU_SIZES.start_s)} == {1, 2}


class Machine:
    """Engines and pieces that take time of a clock, and what became of them, in order."""

    def __init__(self, **start_s: float) -> None:
        self.clock, self.log, self.start_s = Clock(), list[str](), start_s
        self.kept: dict[str, Found] = {}

    @contextmanager
    def engine(self, name: str) -> Iterator[str]:
        self.log.append(f"start {name}")
        self.clock.pass_s(self.start_s[name])
        if self.start_s[name] == 0:
            raise RuntimeError(f"{name} does not start")
        yield name
        self.log.append(f"end {name}")

    def piece(self, name: str, step: int, engine: str, seconds: float = 10.0, error: str = "") -> Piece:
        def measure(running: str) -> Found:
            assert running == engine
            self.clock.pass_s(seconds)
            if error:
                raise RuntimeError(error)
            self.log.append(name)
            return {"figure": 1}

        return Piece(name, step, engine, 10.0, measure)

    def keep(self, name: str, found: Found) -> None:
        self.log.append(f"kept {name}")
        self.kept[name] = found

    def run(self, budget_s: float, *pieces: Piece) -> list[str]:
        engines: Mapping[str, Callable[[], AbstractContextManager[Any]]] = {
            name: partial(self.engine, name) for name in self.start_s
        }
        Prover(engines, budget_s, 100.0, self.keep, lambda _: None, self.clock).run(pieces)
        return self.log


def test_each_engine_starts_once_and_each_result_is_kept_at_once() -> None:
    machine = Machine(a=100, b=100)
    log = machine.run(1000, machine.piece("1", 1, "a"), machine.piece("6", 6, "a"), machine.piece("2", 2, "b"))
    assert log == ["start a", "1", "kept 1", "6", "kept 6", "end a", "start b", "2", "kept 2", "end b"]
    assert machine.kept["1"] == {"figure": 1, "took_s": 10}


def test_a_start_slower_than_planned_costs_the_least_valuable_step() -> None:
    machine = Machine(a=150, b=150)
    log = machine.run(329, machine.piece("1", 1, "a"), machine.piece("6", 6, "a"), machine.piece("2", 2, "b"))
    assert "6" not in log
    assert machine.clock.now_s <= 329
    assert "2" in log


def test_a_start_that_no_longer_fits_is_not_begun() -> None:
    machine = Machine(a=200, b=200)
    assert machine.run(300, machine.piece("1", 1, "a"), machine.piece("2", 2, "b")) == [
        "start a",
        "1",
        "kept 1",
        "end a",
    ]


def test_what_fails_is_kept_with_its_reason_and_the_other_engines_go_on() -> None:
    machine = Machine(a=100, b=0, c=100)
    wrong = machine.piece("2", 2, "a", error="no tokens")
    log = machine.run(
        1000,
        *(machine.piece("1", 1, "a"), wrong, machine.piece("6", 6, "a")),
        *(machine.piece("3", 3, "b"), machine.piece("4", 4, "c")),
    )
    assert log == ["start a", "1", "kept 1", "kept 2", "start b", "kept 3", "start c", "4", "kept 4", "end c"]
    assert machine.kept["2"] == {"failed": "RuntimeError: no tokens"}
    assert machine.kept["3"] == {"failed": "RuntimeError: b does not start"}


def test_what_hangs_ends_with_the_minutes() -> None:
    hanging: list[subprocess.Popen[bytes]] = []
    with subprocess.Popen(HANG) as other:
        with pytest.raises(OutOfTime):
            _hang(hanging)
        ended, others = hanging[0].poll(), other.poll()
        hanging[0].kill()
        other.kill()
    assert ended is not None, "or whatever waits for it would go on waiting"
    assert others is None, "it was there before"


HANG = [sys.executable, "-c", "import signal; signal.pause()"]


def _hang(hanging: list[subprocess.Popen[bytes]]) -> None:
    with command.limited(0.5):
        hanging.append(subprocess.Popen(HANG))
        hanging[0].wait()


def test_memory_is_waited_for_until_it_is_as_before() -> None:
    clock, memory_mib, left = Clock(), iter([70_000.0, 900.0, 510.0, 510.0]), iter([3, 1, 1, 0])
    found = freed(lambda: next(left), lambda: next(memory_mib), 450.0, clock=clock, sleep=clock.pass_s)
    assert found == {"left": 0, "after_mib": 510, "over_mib": 60, "free_s": 0.3}


@pytest.mark.parametrize(("left", "now_mib"), [(0, 551.0), (1, 450.0)], ids=["memory", "process"])
def test_what_stays_is_told_after_a_minute(left: int, now_mib: float) -> None:
    clock = Clock()
    found = freed(lambda: left, lambda: now_mib, 450.0, clock=clock, sleep=clock.pass_s)
    assert 60 <= clock.now_s < 61
    assert (found["left"], found["over_mib"]) == (left, now_mib - 450)


def test_a_machine_without_a_gpu_is_judged_by_its_processes() -> None:
    clock = Clock()
    assert freed(lambda: 0, lambda: None, None, clock=clock, sleep=clock.pass_s)["over_mib"] is None
    assert clock.now_s == 0


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An `nvidia-smi` that answers as NVIDIA's does, and keeps how it was asked."""
    program = tmp_path / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text(
        f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\n'
        'case "$*" in *memory*) echo 1234;; *loop*) echo 40; echo "[N/A]"; echo 60; exec sleep 60;; esac\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    return tmp_path / "asked"


def test_the_gpu_that_cuda_may_use_is_asked(driver: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,4")
    assert nvidia.memory_mib() == 1234
    assert driver.read_text() == "--id=3 --query-gpu=memory.used --format=csv,noheader,nounits\n"


def test_utilisation_is_collected_while_something_runs(driver: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Seen()
    with nvidia.watching(seen):
        seen.wait(2)
    assert seen == [40, 60], "what the driver cannot say is no zero"


class Seen(list[float]):
    """A list that can be waited for."""

    def wait(self, count: int) -> None:
        from tests.waiting import eventually_blocking

        eventually_blocking(lambda: len(self) == count)


def test_without_a_driver_there_are_no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    seen: list[float] = []
    with nvidia.watching(seen):
        pass
    assert (nvidia.memory_mib(), seen) == (None, [])


def speed(tokens_per_s: float, prompt_tokens: int = 100) -> Found:
    sample = {
        "tokens_per_s": tokens_per_s,
        "total_ms_p50": 10.0,
        "front_ms_per_request": 1.0,
        "prompt_tokens": prompt_tokens,
        "output_tokens": 64,
    }
    return {"at_once": {"64": [sample], "1024": [sample]}}


def results() -> dict[str, Found]:
    """Of all pieces, everything well."""
    batch = {"tokens_per_s": 1.0, "run_ms_p50": 1.0, "run_ms_p95": 2.0, "run_ms_p99": 3.0, "running": 1.0}
    return {
        ANSWERS: {"asked": 64, "answered": 64, "wall_s": 1.0},
        KILL: {
            "before_mib": 4,
            "with_mib": 70_000,
            "after_mib": 6,
            "over_mib": 2,
            "processes": 2,
            "left": 0,
            "free_s": 1,
        },
        STREAMS: {
            "streams": 1000,
            "whole": 1000,
            "at_once": 1000,
            "p50_ms": 20.0,
            "p99_ms": 80.0,
            "most_ms": 90.0,
            "entries": 10,
            "seconds": 5.0,
            "cores": {"gateway": 0.5},
        },
        SIZES: {"sizes": {"1": {**batch, "utilisation": 45.0}}},
        speed_of(WORKER): speed(985),
        speed_of(ROUND): speed(900),
        speed_of(SERVE): speed(980),
        speed_of(BARE): speed(980),
    }


def report(found: dict[str, Found], *, dry: bool = False, gpu: str = "NVIDIA H100") -> Report:
    machine = {"processor": "Abacus", **({"gpu": gpu} if gpu else {})}
    made = Report("gpu", "2026-01-31", machine, {"dry run": dry}, data={"pieces": found})
    tables.fill(made)
    return made


def verdicts(made: Report) -> dict[str, bool]:
    return {target.name: target.holds for target in made.targets}


def test_all_that_holds_holds() -> None:
    made = report(results())
    assert len(made.targets) == 1 + 2 + 4 + 3
    assert all(verdicts(made).values())
    assert [table.title.partition(":")[0] for table in made.tables] == [
        "Steps",
        "SIGKILL",
        "Speed",
        "Batch sizes",
        "Streams",
    ]


@pytest.mark.parametrize(
    ("name", "change", "missed"),
    [
        (ANSWERS, {"answered": 63}, 1),
        (KILL, {"over_mib": 101}, 1),
        (KILL, {"over_mib": None}, 1),
        (KILL, {"left": 1}, 1),
        (STREAMS, {"at_once": 999}, 1),
        (STREAMS, {"whole": 999}, 1),
        (STREAMS, {"p99_ms": 101.0}, 1),
        (speed_of(WORKER), speed(965), 3),
        (speed_of(SERVE), speed(990), 2),
        (speed_of(BARE), speed(1000, prompt_tokens=99), 2),
    ],
)
def test_each_miss_is_one(name: str, change: Found, missed: int) -> None:
    found = results()
    found[name] = {**found[name], **change}
    assert [*verdicts(report(found)).values()].count(False) == missed


def test_a_dry_run_has_tables_and_no_verdicts() -> None:
    made = report(results(), dry=True)
    assert len(made.tables) == 5
    assert not made.targets


def test_what_was_not_run_or_failed_is_said_and_not_judged() -> None:
    found: dict[str, Found] = {ANSWERS: results()[ANSWERS], KILL: {"failed": "RuntimeError: gone\nand more"}}
    made = report(found)
    assert len(made.targets) == 1
    [steps] = made.tables
    states = {row["what"]: row[""] for row in steps.rows}
    assert (states[ANSWERS], states[KILL], states[SIZES]) == ("measured", "RuntimeError: gone", "not yet run")


@pytest.fixture
def proof(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, list[str]]]:
    """`prove` with pieces that give the results of `results` at once; its status, and what was run."""
    ran: list[str] = []
    broken: dict[str, BaseException] = {}

    def fake(name: str) -> Callable[[Any], Found]:
        def measure(_: Any) -> Found:
            ran.append(name)
            if name in broken:
                raise broken[name]
            return results()[name]

        return measure

    real = measured.pieces(GPU_SIZES)
    faked = [Piece(each.name, each.step, each.engine, each.seconds, fake(each.name)) for each in real]
    monkeypatch.setattr(measured, "pieces", lambda _: faked)
    monkeypatch.setattr(measured, "engines", lambda _: {name: partial(nothing, name) for name in (WORKER, SERVE, BARE)})
    model = tmp_path / "model"
    model.mkdir()

    def prove(
        *,
        minutes: float = 20,
        steps: tuple[int, ...] | None = None,
        breaks: Sequence[str] = (),
        late: Sequence[str] = (),
    ) -> Any:
        ran.clear()
        broken.clear()
        broken.update(dict.fromkeys(breaks, RuntimeError("broken")) | dict.fromkeys(late, OutOfTime()))
        args = argparse.Namespace(
            minutes=minutes, steps=steps, model=model, shape=None, engine_args="", out=tmp_path / "out"
        )
        return command.prove(args, dry=False), list(ran)

    return prove


@contextmanager
def nothing(name: str) -> Iterator[str]:
    yield name


def kept(folder: Path) -> dict[str, Found]:
    found: dict[str, Found] = load(folder / "out" / "gpu.json").data["pieces"]
    return found


def test_a_later_run_goes_on_with_what_has_no_result(proof: Any, tmp_path: Path) -> None:
    assert proof(steps=(1,)) == (0, [ANSWERS, KILL])
    status, ran = proof(breaks=[SIZES])
    assert status == 1, "something failed"
    assert ran == [speed_of(WORKER), speed_of(ROUND), STREAMS, speed_of(SERVE), SIZES, speed_of(BARE)]
    assert "failed" in kept(tmp_path)[SIZES]
    assert proof() == (0, [SIZES])
    assert proof(steps=(1,)) == (0, [ANSWERS, KILL]), "a step that is named is measured again"
    assert set(kept(tmp_path)) == set(results())


def test_what_the_minutes_cut_off_is_named_and_done_later(proof: Any, capsys: pytest.CaptureFixture[str]) -> None:
    status, ran = proof(late=[SIZES])
    assert (status, ran[-1]) == (0, SIZES)
    said = capsys.readouterr().out
    assert "20 minutes are over" in said
    assert f"not run: {SIZES} (step 3), {speed_of(BARE)} (step 2); the same command" in said
    assert proof() == (0, [SIZES, speed_of(BARE)])


def test_nothing_at_all_is_an_error(proof: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert proof(minutes=1) == (1, [])
    assert "too few minutes" in capsys.readouterr().out


def test_results_of_another_machine_are_not_mixed(proof: Any, tmp_path: Path) -> None:
    proof(steps=(1,))
    path = tmp_path / "out" / "gpu.json"
    there = json.loads(path.read_text())
    there["machine"]["gpu"] = "another"
    path.write_text(json.dumps(there))
    with pytest.raises(SystemExit, match=r"another machine \(gpu\): name another --out"):
        proof()


def test_each_missing_package_is_named_with_its_release(repository: Path, tmp_path: Path) -> None:
    """In a Python that has nothing but `packaging` and an httpx that is too old."""
    import packaging

    (tmp_path / "packaging").symlink_to(Path(packaging.__file__).parent)
    (tmp_path / "httpx-0.1.dist-info").mkdir()
    (tmp_path / "httpx-0.1.dist-info/METADATA").write_text("Name: httpx\nVersion: 0.1\n")
    done = subprocess.run(
        [sys.executable, "-S", "-m", "bench.gpu", "--dry-run"],
        cwd=repository,
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert "redis[hiredis]>=5.3: not installed" in done.stdout
    assert "hiredis: not installed" in done.stdout
    assert "httpx>=0.27: 0.1 is installed" in done.stdout
    assert "fastapi>=0.115: not installed" in done.stdout
    assert "streamfleet itself: not installed" in done.stdout


def test_a_shape_has_a_token_for_every_id_and_knows_the_prompts(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    from bench.engine.work import WORDS
    from bench.gpu.shapes import SHAPES, shape_folder

    folder = shape_folder("smollm2-135m", tmp_path)
    size = json.loads((folder / "config.json").read_text())["vocab_size"]
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert sorted(tokenizer.get_vocab().values()) == list(range(size))
    assert tokenizer.decode([size - 1]) == f" t{size - 1}"
    text = "Tell a story with these words: " + " ".join(WORDS) + " Grüße"
    ids = tokenizer.encode(text).ids
    assert tokenizer.decode(ids) == text
    assert len(ids) < 2 * len(text.split()), "a word of a prompt is about a token, as with a real tokenizer"
    assert SHAPES["llama-3-8b"]["vocab_size"] == 128256


EMPTY = "<!-- gpu:proof:begin -->\n<!-- gpu:proof:end -->"


def test_the_page_says_what_was_not_run(tmp_path: Path) -> None:
    assert page.fill(EMPTY, tmp_path).count("not yet run") == len(measured.pieces(GPU_SIZES))


def test_the_page_shows_machine_targets_and_tables(tmp_path: Path) -> None:
    report(results()).save(tmp_path)
    text = page.fill(EMPTY, tmp_path)
    assert "2026-01-31: NVIDIA H100, Abacus" in text
    assert "| hold |" in text
    assert "**Speed: the same requests to each, all at once**" in text
    assert "**SIGKILL" not in text, "the targets say all of it"


@pytest.mark.parametrize("other", [{"dry": True}, {"gpu": ""}])
def test_the_page_takes_nothing_but_runs_on_a_gpu(tmp_path: Path, other: Any) -> None:
    report(results(), **other).save(tmp_path)
    with pytest.raises(PageError, match="not of a GPU"):
        page.fill(EMPTY, tmp_path)


def test_the_extra_names_only_releases_that_were_run(repository: Path) -> None:
    from packaging.requirements import Requirement

    project = tomllib.loads((repository / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    [asked] = [Requirement(line) for line in project["optional-dependencies"]["gpu"] if line.startswith("vllm")]
    ran = set(re.findall(r"^\| (\d+\.\d+)\.\d+ \|", page.PAGE.read_text(encoding="utf-8"), re.MULTILINE))
    allowed = {f"0.{minor}" for minor in range(100) if asked.specifier.contains(f"0.{minor}.0")}
    assert allowed
    assert allowed <= ran


def test_wheels_go_in_parts_and_come_together_again(tmp_path: Path) -> None:
    made = [wheel(tmp_path, name) for name in ("small", "large")]
    size = max(path.stat().st_size for path in made)
    out = tmp_path / "parts"
    parts = wheels.cut(made, out, size // 2 + 100)
    assert parts == len(list(out.glob("part-*"))) == -(-sum(path.stat().st_size for path in made) // (size // 2 + 100))
    assert max(sum(each.stat().st_size for each in part.iterdir()) for part in out.glob("part-*")) <= size // 2 + 100
    assert list(out.glob("part-*/*.whl.001")), "one had to be cut"
    (out / "install.sh").write_text(wheels.INSTALL, encoding="utf-8")
    words = ["sh", str(out / "install.sh"), "--target", str(tmp_path / "site")]
    subprocess.run(words, env={**os.environ, "PYTHON": sys.executable}, check=True, capture_output=True)
    for name in ("small", "large"):
        assert (tmp_path / "site" / f"{name}.py").is_file()


def wheel(folder: Path, name: str) -> Path:
    """A wheel of one module."""
    path = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(f"{name}.py", f"NAME = {name!r}\n" + "#" * (2000 if name == "large" else 10))
        info = f"{name}-1.0.dist-info"
        file.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        file.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        file.writestr(f"{info}/RECORD", "")
    return path


def test_what_a_machine_has_is_not_brought() -> None:
    have = wheels.installed("torch==2.11.0+cu130\nPy_YAML==6.0 ; x\n-e git+x\n")
    assert have == {"torch": "2.11.0", "py-yaml": "6.0"}
    assert wheels.lacking({"torch": "2.11.0", "py-yaml": "6.1", "redis": "8.1.0"}, have) == [
        "py-yaml==6.1",
        "redis==8.1.0",
    ]
