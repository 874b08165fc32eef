"""Build the images of the Dockerfile with docker, podman or buildah; a line for each. Standard library only.

    tools/images.py                          client, gateway and worker-cpu
    tools/images.py --base IMAGE             from a base that has Python 3.11 or newer with pip
    tools/images.py client --with podman

Without --base, images are built from the Dockerfile's own base. Where no registry is reached, the base is Debian's, made
by debootstrap, and a Redis out of Debian's packages stands in for the official image. Packages come from where pip is
configured to look. What each build says is in build/images. `--remove` takes the images away again.
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
from pathlib import Path

import containers_here
import pip_here

ROOT = Path(__file__).parent.parent
LOGS = ROOT / "build" / "images"
TARGETS = ("client", "gateway", "worker-cpu")
DEBIAN, REDIS = "streamfleet/debian-base:bookworm", "streamfleet/debian-redis:bookworm"
REDIS_STEPS = (
    f"FROM {DEBIAN}\nRUN apt-get update && apt-get install --yes --no-install-recommends redis-server "
    # A volume that is mounted there would get the folder's owner, whom the manifests do not know.
    "&& rm -rf /var/lib/apt/lists/* /etc/redis\n"
)
STEP = re.compile(r"STEP \d+/\d+: |^#\d+ \[")
"""Lines by which podman, buildah and docker begin a step of the Dockerfile."""
TELL_S, PULL_S = 20.0, 600
ENGINES = ("docker", "podman", "buildah")
NO_ENGINE = (
    "nothing here builds images: start docker's daemon, or install podman\n"
    "  Debian, as root: apt-get install --no-install-recommends podman runc netavark aardvark-dns iptables debootstrap"
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
    try:
        builder = Builder(given.engine or working_engine())
        if given.remove:
            return builder.remove()
        builder.build_all(given.targets or list(TARGETS), given.base)
    except (BuildFailed, containers_here.NoContainers) as error:
        sys.stdout.flush()
        print(f"make images: {error}", file=sys.stderr)
        return 1
    return 0


def working_engine() -> str:
    """The first engine that answers. Raises BuildFailed when there is none."""
    for engine in ENGINES:
        asked = ["docker", "info"] if engine == "docker" else [engine, "images", "--quiet"]
        if shutil.which(engine) and subprocess.run(asked, capture_output=True, check=False).returncode == 0:
            return engine
    raise BuildFailed(NO_ENGINE)


class Builder:
    """One of the engines, and how it is told to build.

    Args:
        engine: `docker`, `podman` or `buildah`.
    """

    def __init__(self, engine: str) -> None:
        self._engine = engine
        self._variables: dict[str, str] = {}
        self._options: list[str] = []

    def build_all(self, targets: list[str], base: str | None) -> None:
        """Build all targets. Raises BuildFailed, NoContainers."""
        started = time.monotonic()
        LOGS.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as folder:
            base = base or self._base(Path(folder))
            if self._engine != "docker":
                trial = [*self._command("build"), "--file", "-", folder]
                self._variables = containers_here.environment(trial, f"FROM {base}\nRUN python3 -m pip --version\n")
            self._options = self._mounts(Path(folder))
            for target in targets:
                self._build(
                    target, f"streamfleet/{target}:{version()}", ["--build-arg", f"BASE={base}", "--target", target]
                )
            if base == DEBIAN:
                self._build("redis", REDIS, ["--file", "-"], REDIS_STEPS)
        told = (
            f"; for podman by hand: export CONTAINERS_CONF={self._variables['CONTAINERS_CONF']}"
            if self._variables
            else ""
        )
        say(f"images ready after {time.monotonic() - started:.0f} s{told}")

    def remove(self) -> int:
        """Remove all images that this program builds."""
        for name in [*(f"streamfleet/{target}:{version()}" for target in TARGETS), REDIS, DEBIAN]:
            if self._has(name):
                subprocess.run([self._engine, "rmi", name], check=True, stdout=subprocess.DEVNULL)
                say(f"{name:<38} removed")
        return 0

    def _base(self, folder: Path) -> str:
        """The Dockerfile's own base, which is pulled when it is not there; without a registry, one of Debian's."""
        found = re.search(r"^ARG BASE=(\S+)$", (ROOT / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)
        assert found
        official = f"docker.io/library/{found[1]}"
        if self._has(official) or self._pulled(official):
            return official
        if not self._has(DEBIAN):
            say(f"no registry gives {official}: debootstrap makes a base of Debian's packages (a minute) …")
            self._run("base", ["tools/debian_base.sh", f"{folder}/base.tar"])
            (folder / "Dockerfile").write_text('FROM scratch\nADD base.tar /\nCMD ["python3"]\n', encoding="utf-8")
            self._build("base", DEBIAN, [], context=str(folder))
        return DEBIAN

    def _build(self, name: str, tag: str, options: list[str], given: str = "", context: str = ".") -> None:
        started = time.monotonic()
        command = [*self._command("build"), *self._options, *options, "--tag", tag, context]
        self._run(name, command, given)
        size = self._asked("images", "--format", "{{.Size}}", tag)
        say(f"{tag:<38} {time.monotonic() - started:>4.0f} s  {size}")

    def _command(self, verb: str) -> list[str]:
        # What RUN fetches comes through this machine's network. Of the OCI's format, images have no health check.
        more = [] if self._engine == "docker" else ["--layers", "--format=docker", "--pull=never"]
        return [self._engine, verb, "--network=host", *more]

    def _mounts(self, folder: Path) -> list[str]:
        mounts = pip_here.mounts(folder)
        if mounts and self._engine == "docker":
            say("pip's configuration here does not reach docker's builds: where they fail for it, ARGS='--with podman'")
            return []
        return [f"--volume={here}:{inside}:ro" for here, inside in mounts.items()]

    def _run(self, name: str, command: list[str], given: str = "") -> None:
        """Run a command with its output in a log, and a line now and then. Raises BuildFailed."""
        log = LOGS / f"{name}.log"
        started = told = time.monotonic()
        with log.open("w", encoding="utf-8") as written:
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=os.environ | self._variables,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
            )
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                process.stdin.write(given)
                process.stdin.close()
                step = ""
                for line in process.stdout:
                    written.write(line)
                    step = line if STEP.search(line) else step
                    now = time.monotonic()
                    if now - told > TELL_S:
                        told = now
                        say(f"  {name}, {now - started:.0f} s: {(step or line).strip()[:100]}")
            except BaseException:
                process.terminate()
                raise
            finally:
                process.wait()
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
    """The tag of the images, which is the project's version."""
    found = re.search(r'^version = "(\S+)"$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    assert found
    return found[1]


def say(line: str) -> None:
    """Print a line at once."""
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
