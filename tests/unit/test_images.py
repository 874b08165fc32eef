"""`make images`: what a build gets from pip's configuration of this machine, and the runtime that containers get."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from tests.unit.test_dockerfile import stages

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tools"))
import containers_here  # noqa: E402
import images  # noqa: E402
import pip_here  # noqa: E402


def test_images_are_targets_of_the_dockerfile() -> None:
    assert set(images.TARGETS) < set(stages((ROOT / "Dockerfile").read_text(encoding="utf-8")))


def test_an_image_says_which_version_of_which_commit_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Builds get the values of the labels, and each target has them."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    given = dict(option.removeprefix("--build-arg=").split("=", 1) for option in images.labels())
    assert f"\nARG VERSION={given['VERSION']}\n" in text, "a build by hand says the same"
    for name in (*images.TARGETS, "worker-gpu"):
        stage = stages(text)[name]
        found = dict(re.findall(r'org\.opencontainers\.image\.(\w+)="\$\{(\w+)\}"', " ".join(stage.all("LABEL"))))
        assert found == {"version": "VERSION", "revision": "REVISION", "source": "SOURCE"}
        assert set(given) <= set(stage.all("ARG"))
    (tmp_path / "git").write_text("#!/bin/sh\necho 0123abcd-dirty\n", encoding="utf-8")
    (tmp_path / "git").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "--build-arg=REVISION=0123abcd-dirty" in images.labels()
    (tmp_path / "git").unlink()
    assert "--build-arg=REVISION=" in images.labels()


def test_options_that_say_where_packages_are() -> None:
    listed = (
        "global.index-url='https://one.example/simple'\nglobal.no-cache-dir='true'\n:env:.cert='/a.pem'\n"
        ":env:.index-url='https://two.example/simple'\ninstall.find-links='/wheels'\n"
    )
    assert pip_here.options(listed) == {"index-url": "https://two.example/simple", "cert": "/a.pem"}


def test_paths_become_mounts(tmp_path: Path) -> None:
    page = tmp_path / "wheels" / "index.html"
    page.parent.mkdir()
    page.touch()
    found: dict[str, str] = {}
    words = [str(page.parent), f"file://{page}", "https://one.example/simple", "/not/there"]
    moved = [pip_here.moved(word, found) for word in words]
    assert moved == ["/mnt/pip/0", "file:///mnt/pip/0/index.html", "https://one.example/simple", "/not/there"]
    assert found == {str(page.parent): "/mnt/pip/0"}


@pytest.fixture
def runtimes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("runc", "crun"):
        (tmp_path / name).write_text("#!/bin/sh\n", encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(containers_here, "CONFIGURATION", tmp_path / "build" / "containers.conf")
    monkeypatch.delenv("CONTAINERS_CONF", raising=False)
    return tmp_path


def test_the_default_runtime_is_kept_where_it_works(runtimes: Path) -> None:
    assert containers_here.environment(["true"]) == {}


def test_another_runtime_is_taken_where_the_default_fails(runtimes: Path) -> None:
    found = containers_here.environment(["sh", "-c", 'grep crun "$CONTAINERS_CONF"'])
    assert 'runtime = "crun"' in Path(found["CONTAINERS_CONF"]).read_text(encoding="utf-8")


def test_no_runtime_is_an_error_with_what_each_said(runtimes: Path) -> None:
    with pytest.raises(containers_here.NoContainers, match=r"by default: refused\n  runc: refused\n  crun: refused"):
        containers_here.environment(["sh", "-c", "echo refused >&2; exit 1"])


def test_the_trial_of_a_runtime_runs_a_container(runtimes: Path) -> None:
    """The result of an earlier trial would come from the cache, by whatever runtime."""
    (runtimes / "podman").write_text(f'#!/bin/sh\necho "$@" >>{runtimes}/calls\n', encoding="utf-8")
    (runtimes / "podman").chmod(0o755)
    images.Builder("podman", runtimes).build_all([], "base")
    assert " --no-cache " in (runtimes / "calls").read_text(encoding="utf-8")


def test_root_on_debian_gets_an_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    podman = tmp_path / "podman"
    script = f'#!/bin/sh\nif [ "$2" = install ]; then echo "#!/bin/sh" >{podman}; /bin/chmod 755 {podman}; fi\n'
    (tmp_path / "apt-get").write_text(script, encoding="utf-8")
    (tmp_path / "apt-get").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(images.BuildFailed):
        images.working_engine()
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert images.working_engine() == "podman"
