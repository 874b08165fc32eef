#!/usr/bin/env python3
"""Build the images of the Dockerfile with docker, podman or buildah; a line for each. Standard library only.

    tools/images.py                          client, gateway, worker and worker-cpu
    tools/images.py --base IMAGE             on a base that has Python 3.11 or newer with pip
    tools/images.py client --with podman

Without --base, images are built on the Dockerfile's own base. Where no registry is reached, the base is Debian's, made
by debootstrap as root, and a Redis out of Debian's packages stands in for the official image. Where nothing builds
images, root on Debian gets podman from apt-get. Python packages come from where pip is configured to look. What each
build says is in build/images. `--remove` takes the images away again. A build that is stopped leaves podman's working
containers, as podman does: `podman ps --all --external` lists them.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path

import containers_here
import pip_here

ROOT = Path(__file__).parent.parent
LOGS = ROOT / "build" / "images"
TARGETS = ("client", "gateway", "worker", "worker-cpu")
ENGINES = ("docker", "podman", "buildah")
DEBIAN, REDIS = "streamfleet/debian-base:bookworm", "streamfleet/debian-redis:bookworm"
DEBIAN_STEPS = 'FROM scratch\nADD base.tar /\nCMD ["python3"]\n'
# A volume that is mounted at /etc/redis would get the folder's owner, whom the manifests do not know.
REDIS_STEPS = (
    f"FROM {DEBIAN}\nRUN apt-get update && apt-get install --yes --no-install-recommends redis-server "
    "&& rm -rf /var/lib/apt/lists/* /etc/redis\n"
)
STEP = re.compile(r"STEP \d+/\d+: |^#\d+ \[")
"""The beginning of a step, as podman, buildah and docker write it."""
TELL_S, PULL_S = 20.0, 600
PACKAGES = "podman runc catatonit netavark aardvark-dns iptables iproute2 debootstrap"
NO_ENGINE = (
    "nothing here builds images: start docker's daemon, or install podman\n"
    f"  Debian, as root: apt-get install --no-install-recommends {PACKAGES}"
)


class BuildFailed(Exception):
    """An image could not be built; the message says why, and where the rest is."""


def main() -> int:
    """Build, or remove, what the command line names; 1 with a message when that fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of the Dockerfile ({' '.join(TARGETS)})")
    parser.add_argument("--base", help="image to build on")
    parser.add_argument("--with", dest="engine", choices=ENGINES, help="by default the first of them that works")
    parser.add_argument("--remove", action="store_true", help="take away what this has built")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    LOGS.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory() as folder:
            builder = Builder(given.engine or working_engine(), Path(folder))
            if given.remove:
                builder.remove()
            else:
                builder.build_all(given.targets or list(TARGETS), given.base)
    except (BuildFailed, containers_here.NoContainers) as error:
        print(f"make images: {error}", file=sys.stderr)
        return 1
    return 0


def working_engine() -> str:
    """The first engine that answers. Where none does, root on Debian gets podman. Raises BuildFailed."""
    engine = answering()
    if engine is None and os.geteuid() == 0 and shutil.which("apt-get"):
        say(f"nothing here builds images: apt-get installs {PACKAGES} …")
        quiet = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
        install = ["install", "--yes", "--no-install-recommends", *PACKAGES.split()]
        for words in (["update"], install):
            subprocess.run(["apt-get", "--quiet", *words], env=quiet, stdout=subprocess.DEVNULL, check=False)
        engine = answering()
    if engine is None:
        raise BuildFailed(NO_ENGINE)
    return engine


def answering() -> str | None:
    """The first engine that answers; None if none does."""
    for engine in ENGINES:
        asked = ["docker", "info"] if engine == "docker" else [engine, "images", "--quiet"]
        if shutil.which(engine) and subprocess.run(asked, capture_output=True, check=False).returncode == 0:
            return engine
    return None


class Builder:
    """One of the engines, and how it is told to build.

    Args:
        engine: `docker`, `podman` or `buildah`.
        folder: for what it needs meanwhile.
    """

    def __init__(self, engine: str, folder: Path) -> None:
        self._engine, self._folder = engine, folder
        self._variables: dict[str, str] = {}
        self._mounts: list[str] = []

    def build_all(self, targets: list[str], base: str | None) -> None:
        """Build all targets. Raises BuildFailed, NoContainers."""
        started = time.monotonic()
        base = base or self._base()
        if self._engine != "docker":
            # A trial out of the cache would run no container.
            trial = ["--no-cache", *self._file("trial", f"FROM {base}\nRUN python3 -m pip --version\n")]
            self._variables = containers_here.environment([*self._command, *trial, str(self._folder)])
        self._mounts = self._pip_mounts()
        for target in targets:
            options = (f"--build-arg=BASE={base}", f"--target={target}", *labels())
            self._build(f"streamfleet/{target}:{version()}", *options)
        if base == DEBIAN:
            self._build(REDIS, *self._file("redis", REDIS_STEPS))
        say(f"images ready after {time.monotonic() - started:.0f} s")

    def remove(self) -> None:
        """Remove all images that this program builds."""
        for name in [*(f"streamfleet/{target}:{version()}" for target in TARGETS), REDIS, DEBIAN]:
            if self._has(name):
                subprocess.run([self._engine, "rmi", "--force", name], check=True, stdout=subprocess.DEVNULL)
                say(f"{name} removed")

    def _base(self) -> str:
        """The Dockerfile's own base, which is pulled when it is not there; without a registry, one of Debian's."""
        official = "docker.io/library/" + found_in("Dockerfile", r"^ARG BASE=(\S+)$")
        if self._has(official) or self._pulled(official):
            return official
        if not self._has(DEBIAN):
            say(f"no registry gives {official}: debootstrap makes a base of Debian's packages (a minute) …")
            self._run("debootstrap", ["tools/debian_base.sh", f"{self._folder}/base.tar"])
            self._build(DEBIAN, *self._file("base", DEBIAN_STEPS), context=str(self._folder))
        return DEBIAN

    def _build(self, tag: str, *options: str, context: str = ".") -> None:
        started = time.monotonic()
        command = [*self._command, *self._mounts, *options, f"--tag={tag}", context]
        self._run(tag.partition("/")[2].partition(":")[0], command)
        size = self._asked("images", "--format", "{{.Size}}", tag)
        say(f"{tag:<36} {time.monotonic() - started:>4.0f} s  {size}")

    @property
    def _command(self) -> list[str]:
        # Builds fetch through this machine's network. Images in the OCI's format have no health check.
        more = [] if self._engine == "docker" else ["--layers", "--format=docker", "--pull=never"]
        return [self._engine, "build", "--network=host", *more]

    def _file(self, name: str, steps: str) -> list[str]:
        """Options for a Dockerfile with these steps."""
        written = self._folder / f"{name}.Dockerfile"
        written.write_text(steps, encoding="utf-8")
        return [f"--file={written}"]

    def _pip_mounts(self) -> list[str]:
        mounts = pip_here.mounts(self._folder)
        if mounts and self._engine == "docker":
            say("pip's configuration here does not reach docker's builds: where they fail for it, ARGS='--with podman'")
            return []
        return [f"--volume={here}:{inside}:ro" for here, inside in mounts.items()]

    def _run(self, name: str, command: list[str]) -> None:
        """Run a command with its output in a log, and a line now and then. Raises BuildFailed."""
        log = LOGS / f"{name}.log"
        environment = os.environ | self._variables
        started = told = time.monotonic()
        step = ""
        with (
            log.open("w", encoding="utf-8") as written,
            subprocess.Popen(
                command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True,
            ) as process,
        ):  # fmt: skip
            try:
                for line in process.stdout or ():
                    written.write(line)
                    step = line if STEP.search(line) else step
                    if time.monotonic() - told > TELL_S:
                        told = time.monotonic()
                        say(f"  {name}, {told - started:.0f} s: {(step or line).strip()[:100]}")
            except BaseException:  # told to stop: so is what it has started, which cleans up
                os.killpg(process.pid, signal.SIGTERM)
                raise
        if process.returncode:
            last = "\n  ".join(log.read_text(encoding="utf-8").strip().splitlines()[-6:])
            raise BuildFailed(f"{name} could not be built:\n  {last}\nAll of it: {log}")

    def _pulled(self, image: str) -> bool:
        command = [self._engine, "pull", image]
        try:
            return subprocess.run(command, capture_output=True, check=False, timeout=PULL_S).returncode == 0
        except subprocess.TimeoutExpired:
            return False

    def _has(self, image: str) -> bool:
        return bool(self._asked("images", "--quiet", image))

    def _asked(self, *words: str) -> str:
        done = subprocess.run([self._engine, *words], capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else ""


def version() -> str:
    """The tag of the images: the project's version."""
    return found_in("pyproject.toml", r'^version = "(\S+)"$')


def labels() -> list[str]:
    """Options with the values of the images' labels; the commit is empty in a copy without git or its history."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    values = {"VERSION": project["version"], "REVISION": "", "SOURCE": project.get("urls", {}).get("Source", "")}
    if shutil.which("git"):
        command = ["git", "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty"]
        asked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        values["REVISION"] = asked.stdout.strip()
    return [f"--build-arg={name}={value}" for name, value in values.items()]


def found_in(file: str, pattern: str) -> str:
    """A part of a file of this repository that is surely there."""
    found: list[str] = re.findall(pattern, (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE)
    return found[0]


def say(line: str) -> None:
    """Print a line at once."""
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
