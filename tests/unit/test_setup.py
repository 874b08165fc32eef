"""A fresh machine: what the set-up unpacks, what is skipped and said, and what `.ci/run` makes of a test that fails."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.programs import not_run, program
from tests.servers import MISSING, SYSTEM, outermost, required_releases

Completed = subprocess.CompletedProcess[str]
PIP_FREE = "import sys; sys.path.insert(0, 'tools'); from pathlib import Path; from setup_system import *\n"
APT = """\
#!/bin/sh
for word in "$@"; do case "$word" in Dir::Cache=*) cache=${word#Dir::Cache=} ;; esac; done
case "$*" in *install*) echo "$*" >>"$LOG"; cp "$PACKAGES"/*.deb "$cache/archives/" ;; *) echo update >>"$LOG" ;; esac
"""
MAKE = """\
#!/bin/sh
echo "make $*" >>"$LOG"
case "$*" in
"test")
    mkdir -p .pytest_cache/v/cache
    [ -z "$FAILING" ] || echo '{"tests/test_a.py::test_b[the c]": true}' >.pytest_cache/v/cache/lastfailed
    echo "not run: ${NOT_RUN:-nothing}"
    exit "${FAILING:-0}" ;;
*--last-failed*) exit "${AGAIN:-0}" ;;
*lint*) echo "not run: ${NOT_CHECKED:-nothing}" ;;
"${BROKEN:-no}") exit 1 ;;
esac
"""


def write_program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)


def test_a_test_whose_program_is_missing_is_skipped_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.skip.Exception, match=r"^needs promtool: sudo apt-get install prometheus$"):
        program("promtool")
    write_program(tmp_path / "promtool", "#!/bin/sh\n")
    assert program("promtool") == str(tmp_path / "promtool")


def test_the_line_at_the_end_counts_by_reason() -> None:
    assert not_run([]) == "not run: nothing"
    reasons = [
        "Skipped: needs promtool: install it",
        "Skipped: needs node: install it",
        "Skipped: needs promtool: install it",
    ]
    assert not_run(reasons) == "not run: 1 (needs node: install it), 2 (needs promtool: install it)"


def test_a_run_of_several_processes_ends_with_that_line(repository: Path, tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text("from tests.programs import pytest_terminal_summary\n")
    (tmp_path / "test_it.py").write_text(
        "import pytest\nfrom tests.programs import program\n"
        "@pytest.mark.parametrize('number', range(3))\ndef test_it(number): program('no-such-program')\n"
    )
    words = ["-m", "pytest", "-n", "2", "-q", "-p", "xdist", "-o", f"pythonpath={repository}", f"--rootdir={tmp_path}"]
    ran = subprocess.run(
        [sys.executable, *words, str(tmp_path)],
        cwd=tmp_path,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": "", "CI": "true"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "not run: 3 (needs no-such-program: sudo apt-get install no-such-program)" in ran.stdout


def test_where_only_wheels_bring_a_redis_the_systems_is_said_to_be_missing() -> None:
    wheels = {label: Path("/venv/site-packages", label) for label in ("redis-6.2", "redis-8.2")}
    assert required_releases(wheels) == [*wheels, f"{MISSING}{SYSTEM}"]
    assert required_releases({**wheels, "redis-7.0": Path("/usr/bin/redis-server")}) == [*wheels, "redis-7.0"]


def test_most_tests_of_several_releases_run_on_the_oldest_and_the_newest() -> None:
    found = {label: Path("/usr/bin", label) for label in ("redis-6.2", "redis-7.0", "redis-8.2", "valkey-9.1")}
    assert outermost(found) == ["redis-6.2", "redis-8.2"]
    del found["redis-6.2"]
    assert outermost(found) == ["redis-8.2", f"{MISSING}redis-6.2"], "which fails"


@pytest.fixture
def unpacking(repository: Path, tmp_path: Path) -> Callable[[str], Completed]:
    """Runs code on tools/setup_system.py, with an apt-get that gives one package: `openssl`, and a library it needs."""
    dpkg, bin_folder = program("dpkg-deb"), tmp_path / "bin"
    package = tmp_path / "package"
    write_program(package / "usr/bin/openssl", '#!/bin/sh\necho "$LD_LIBRARY_PATH $*"\n')
    (package / "DEBIAN").mkdir()
    control = (
        "Package: openssl\nVersion: 1\nArchitecture: all\nMaintainer: nobody <nobody@example.org>\nDescription: none\n"
    )
    (package / "DEBIAN/control").write_text(control, encoding="utf-8")
    (tmp_path / "packages").mkdir()
    subprocess.run([dpkg, "--build", package, tmp_path / "packages"], check=True, capture_output=True)
    write_program(bin_folder / "apt-get", APT)
    for name in ("sh", "cp", "dpkg-deb", "tar", "rm", "xz", "zstd"):
        if found := shutil.which(name):
            (bin_folder / name).symlink_to(found)
    environment = {"PATH": str(bin_folder), "LOG": str(tmp_path / "log"), "PACKAGES": str(tmp_path / "packages")}

    def run(code: str) -> Completed:
        words = [sys.executable, "-c", f"{PIP_FREE}venv = Path({str(tmp_path / 'venv')!r})\n{code}"]
        return subprocess.run(words, cwd=repository, env=environment, capture_output=True, text=True, check=False)

    return run


def test_a_program_of_a_debian_package_is_unpacked_and_finds_its_libraries(
    unpacking: Callable[[str], Completed], tmp_path: Path
) -> None:
    first = unpacking("venv.mkdir(); print(missing_programs(venv)); unpack_programs(venv, ['openssl'])")
    assert first.returncode == 0, first.stderr
    assert "'openssl'" in first.stdout
    wrapper = tmp_path / "venv/programs/openssl"
    said = subprocess.run([wrapper, "x"], capture_output=True, text=True, check=True).stdout
    assert said.startswith(f"{tmp_path}/venv/lib/system/usr/lib/")
    assert "--download-only" in (tmp_path / "log").read_text()
    again = unpacking("print('openssl' in missing_programs(venv))")
    assert again.stdout == "False\n"


@pytest.mark.parametrize("lack", ["apt-get", "a mirror", "a program that runs"])
def test_what_cannot_be_had_is_no_traceback(unpacking: Callable[[str], Completed], tmp_path: Path, lack: str) -> None:
    if lack == "apt-get":
        (tmp_path / "bin/apt-get").unlink()
    elif lack == "a mirror":
        write_program(tmp_path / "bin/apt-get", "#!/bin/sh\necho 'no mirror answers' >&2\nexit 100\n")
    wanted = "prometheus" if lack == "a program that runs" else "openssl"
    code = f"venv.mkdir()\ntry: unpack_programs(venv, [{wanted!r}])\nexcept NoPackages as error: print(error)"
    ran = unpacking(code)
    expected = {
        "apt-get": "there is no apt-get",
        "a mirror": "no mirror answers",
        "a program that runs": "does not run here",
    }
    assert expected[lack] in ran.stdout, ran.stderr
    assert not (tmp_path / "venv/programs" / wanted).exists()


@pytest.mark.parametrize(
    ("setting", "status", "said"),
    [
        ({}, 0, "=== done"),
        ({"FAILING": "1"}, 0, "flaky, passed when run alone: tests/test_a.py::test_b[the c]"),
        ({"FAILING": "1", "AGAIN": "1"}, 1, "FAILED: twice"),
        ({"NOT_RUN": "8 (needs promtool: …)"}, 1, "FAILED: apt-get is here, and yet not run: 8 (needs promtool: …)"),
        (
            {"NOT_CHECKED": "1 (needs luacheck: …)"},
            1,
            "FAILED: apt-get is here, and yet not run: 1 (needs luacheck: …)",
        ),
        ({"BROKEN": "demo"}, 1, "FAILED: make demo"),
        ({"BROKEN": "long ARGS=--turn"}, 1, "FAILED: a part of make long, twice with the same seed"),
    ],
    ids=["all is well", "flaky", "fails twice", "not run", "not checked", "demo", "long"],
)
def test_ci_calls_the_two_commands_and_runs_once_more_what_failed(
    repository: Path, tmp_path: Path, setting: dict[str, str], status: int, said: str
) -> None:
    """With a `make` that does as it is told."""
    write_program(tmp_path / ".ci/run", (repository / ".ci/run").read_text(encoding="utf-8"))
    write_program(tmp_path / "bin/make", MAKE)
    write_program(tmp_path / "bin/apt-get", "#!/bin/sh\necho apt-get >>$LOG\n")
    write_program(tmp_path / ".venv/bin/python", f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    environment = {"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin", "LOG": str(tmp_path / "log"), **setting}
    ran = subprocess.run(
        ["bash", ".ci/run"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert (ran.returncode, said in ran.stdout) == (status, True), ran.stdout + ran.stderr
    called = (tmp_path / "log").read_text().splitlines()
    assert "apt-get" not in called
    if not {"BROKEN", "NOT_CHECKED"} & set(setting):
        assert called[:3] == ["make --jobs=2 --output-sync lint types imports", "make demo", "make test"]
    assert any("--last-failed" in line for line in called) == ("FAILING" in setting)
    assert (called[-1] == "make long ARGS=--turn") == (status == 0 or "long" in said)
