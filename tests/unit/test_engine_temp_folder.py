"""The folder of one engine's temporary files: gone with it, and a killed predecessor's at the next start."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from streamfleet.worker.engine import temp_folder
from streamfleet.worker.engine.temp_folder import PREFIX, TempFolder

VARIABLES = ("VLLM_RPC_BASE_PATH", "TMPDIR", "TORCHINDUCTOR_CACHE_DIR")
OTHER = """
import sys
from streamfleet.worker.engine.temp_folder import TempFolder
print(TempFolder.make().path, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A temp folder with a short path, as temp folders have; pytest's own was made before."""
    assert tmp_path.exists()
    for name in VARIABLES:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    path = Path(tempfile.mkdtemp(dir="/tmp"))
    monkeypatch.setattr(tempfile, "tempdir", str(path))
    yield path
    shutil.rmtree(path)


def made() -> TempFolder:
    folder = TempFolder.make()
    assert folder is not None
    return folder


def leftover(base: Path, name: str = f"{PREFIX}dead") -> Path:
    """A folder that nobody has locked, with a file in a folder in it."""
    path = base / name
    (path / "in").mkdir(parents=True)
    (path / "in" / "socket").touch()
    return path


@pytest.fixture
def other(base: Path) -> Iterator[subprocess.Popen[str]]:
    """Another worker, which has made its folder."""
    with subprocess.Popen(
        [sys.executable, "-c", OTHER], env={**os.environ, "TMPDIR": str(base)}, stdin=-1, stdout=-1, text=True
    ) as process:
        yield process
        process.kill()


def said(process: subprocess.Popen[str]) -> Path:
    assert process.stdout is not None
    return Path(process.stdout.readline().strip())


def test_it_is_gone_with_the_engine(base: Path) -> None:
    folder = made()
    (folder.path / "socket").touch()
    assert list(base.iterdir()) == [folder.path]
    folder.remove()
    folder.remove()
    assert list(base.iterdir()) == []


def test_that_of_a_worker_that_lives_stays_until_it_is_killed(base: Path, other: subprocess.Popen[str]) -> None:
    its = said(other)
    (its / "vllm_dist_0").touch()
    first = made()
    assert sorted(base.iterdir()) == sorted([its, first.path])
    other.kill()
    other.wait()
    second = made()
    assert sorted(base.iterdir()) == sorted([first.path, second.path])


def test_nothing_else_is_removed(base: Path, tmp_path: Path) -> None:
    kept = [leftover(base, name) for name in ("streamfleet-demo-x", "vllm_dist_x", "x")]
    outside = leftover(tmp_path, "outside")
    kept.append(base / f"{PREFIX}link")
    kept[-1].symlink_to(outside)
    kept.append(base / f"{PREFIX}file")
    kept[-1].touch()
    abandoned = leftover(base)
    folder = made()
    assert sorted(base.iterdir()) == sorted([*kept, folder.path])
    assert (outside / "in" / "socket").exists()
    assert not abandoned.exists()


def test_that_of_another_user_stays(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = leftover(base)
    monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
    made()
    assert path.exists()


def test_one_that_was_taken_for_an_abandoned_one_is_made_again(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between its making and its locking, another worker that starts may remove it, or hold its lock to do so."""
    make, taken = tempfile.mkdtemp, [0]

    def taken_twice(**how: str) -> str:
        path = make(**how)
        taken[0] += 1
        if taken[0] == 1:
            Path(path).rmdir()
        if taken[0] == 2:
            fcntl.flock(os.open(path, os.O_RDONLY), fcntl.LOCK_EX)
        return path

    monkeypatch.setattr(tempfile, "mkdtemp", taken_twice)
    folder = made()
    assert folder.path.exists()
    assert taken == [3]


def test_a_file_system_without_locks_will_do(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    path = leftover(base)
    monkeypatch.setattr(fcntl, "flock", fail)
    folder = made()
    assert path.exists()
    folder.remove()
    assert list(base.iterdir()) == [path]


def test_processes_that_are_started_in_it_use_it_and_this_one_does_not(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_RPC_BASE_PATH", str(base / "sockets"))
    (base / "sockets").mkdir()
    folder = made()
    assert folder.path.parent == base / "sockets"
    code = "import tempfile; print(tempfile.gettempdir())"
    with folder.in_use():
        found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert Path(found.stdout.strip()) == folder.path == Path(os.environ["VLLM_RPC_BASE_PATH"])
        assert os.environ["TORCHINDUCTOR_CACHE_DIR"].startswith(f"{base}/torchinductor_")
        assert tempfile.gettempdir() == str(base)
    assert [os.environ.get(name) for name in VARIABLES] == [str(base / "sockets"), None, None]


def test_sockets_have_short_paths_or_there_is_no_folder(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = base / ("d" * 60)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    folder = made()
    assert folder.path.parent == Path("/tmp")
    assert len(f"{folder.path}/040b39e5-280e-4385-8fb1-595f6f97b651") <= 107
    folder.remove()
    monkeypatch.setattr(temp_folder, "_NO_BASE", base / "none")
    assert TempFolder.make() is None
