"""`make pods`: the Helm chart by two examples, and compose.yaml, by podman on this machine; a line for each step.

    python -m tests.pods

Needs root, podman, and the images of `make images`. A table in the end says what became of the requests. Ends with 0
when every step went as it should. Whatever happens, everything that it made is removed: pods, volumes, Secrets, the
network, temporary folders. Images stay.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import structlog

from tests.integration.k8s_manifests import ROOT, name_of
from tests.integration.k8s_programs import RendererMissingError
from tests.pods.answers import RealModel
from tests.pods.callers import Callers
from tests.pods.composed import Composed
from tests.pods.converting import lost
from tests.pods.pod import PodFailed, tail
from tests.pods.podman import Podman, PodmanFailed
from tests.pods.rolling import Rolling
from tests.pods.stage import Act, Stage, WrongOutcome
from tests.pods.trouble import Trouble

TARGETS = ("client", "gateway", "worker", "worker-cpu")
REDIS_IMAGES = ("docker.io/library/redis:8.2-bookworm", "localhost/streamfleet/debian-redis:bookworm")
LOCK = Path("/run/lock/streamfleet-pods.lock")
INSTALL = (
    "as root, on Debian: apt-get install --no-install-recommends "
    "podman runc catatonit netavark aardvark-dns iptables debootstrap"
)
Step = tuple[str, Callable[[], str]]


class NotHere(Exception):
    """This machine cannot run the check; the message says what to do."""


def main() -> int:
    """Run all steps. Returns the exit status: 0 when nothing was wrong, 1 when a step was, 77 when none could run."""
    argparse.ArgumentParser(
        prog="python -m tests.pods", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    for sign in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(sign, lambda *_: sys.exit(1))
    started = time.monotonic()
    try:
        with LOCK.open("w") as lock:
            alone(lock.fileno())
            podman = Podman(environment())
            redis = redis_image(podman)
            podman.remove_all()  # of a run that was killed
            failed = run(podman, redis)
    except (NotHere, RendererMissingError) as error:
        print(f"make pods: {error}", file=sys.stderr)
        return 77
    left = podman.left()
    tell("removed", not left, time.monotonic(), ", ".join(left) or "pods, volumes, Secrets, the network, folders")
    print(
        f"{'FAILED' if failed or left else 'all as it should be'}, after {time.monotonic() - started:.0f} s", flush=True
    )
    return int(bool(failed or left))


def environment() -> dict[str, str]:
    """The variables with which podman runs containers here. Raises NotHere."""
    if os.geteuid() != 0:
        raise NotHere("networks and owners of volumes are for root: sudo make pods")
    if missing := [program for program in ("podman", "ip") if not shutil.which(program)]:
        raise NotHere(f"no {' and no '.join(missing)} here; {INSTALL} iproute2")
    sys.path.append(str(ROOT / "tools"))
    import containers_here

    for target in TARGETS:
        if subprocess.run(["podman", "image", "exists", image(target)], check=False).returncode:
            raise NotHere(
                f"podman has no image {image(target)}: make images (where docker built it: ARGS='--with podman')"
            )
    command = ["podman", "run", "--rm", "--network=none", "--pull=never", "--entrypoint=python3", image("client")]
    try:
        return containers_here.environment([*command, "--version"])
    except containers_here.NoContainers as error:
        raise NotHere(str(error)) from None


def image(target: str) -> str:
    """The name that podman has for an image of the Dockerfile, as the chart has it."""
    sys.path.append(str(ROOT / "tools"))
    import images

    return f"localhost/streamfleet/{target}:{images.version()}"


def redis_image(podman: Podman) -> str:
    """The image that the manifests name, pulled where that can be; else what `make images` made. Raises NotHere."""
    official, ours = REDIS_IMAGES
    for words in (("image", "inspect", official), ("pull", official), ("image", "inspect", ours)):
        with contextlib.suppress(PodmanFailed, subprocess.TimeoutExpired):
            podman.call(*words)
            return words[-1]
    raise NotHere(f"no registry gives {official}, and {ours} is not here: make images")


def alone(lock: int) -> None:
    """Hold the lock of this machine. Raises NotHere when another run has it."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise NotHere("another `make pods` runs on this machine: let it end") from None


def run(podman: Podman, redis: str) -> bool:
    """All steps, until one fails. Returns True if one did."""
    began = time.monotonic()
    with Stage(podman, image("client"), redis) as stage, told(stage.acts):
        every = {(each["kind"], name_of(each)): each for each in [*stage.dev_cpu, *stage.gateway]}
        tell("chart by dev-cpu and gateway", True, began, f"{len(every)} manifests")
        for line in lost(list(every.values())):
            print(f"         not by podman   {line}", flush=True)
        print(f"         Redis           {redis}", flush=True)
        for name, step in steps(stage):
            began = time.monotonic()
            try:
                tell(name, True, began, step())
            except Exception as error:  # noqa: BLE001 - whatever it is, what runs by then has to be told and removed
                expected = isinstance(error, WrongOutcome | PodFailed | PodmanFailed)
                tell(name, False, began, f"{'' if expected else f'{type(error).__name__}: '}{error}")
                for pod in stage.node.pods:
                    print(f"  the last words of {pod.name}:\n{tail(pod.log())}", flush=True)
                return True
    return False


@contextlib.contextmanager
def told(acts: list[Act]) -> Iterator[None]:
    """In the end, print what became of the requests of each act."""
    try:
        yield
    finally:
        print(f"\n{'fleet':<13} {'act':<22} {'requests':>8} {'answered':>8} {'lost':>4} {'run again':>9}", flush=True)
        for each in acts:
            numbers = f"{each.asked:>8} {each.answered:>8} {each.asked - each.answered:>4} {each.again:>9}"
            print(f"{each.fleet:<13} {each.name:<22} {numbers}", flush=True)


def steps(stage: Stage) -> list[Step]:
    """The story, in its order."""
    rolling, callers = Rolling(stage), Callers(stage)
    real, trouble, composed = RealModel(stage), Trouble(stage, callers), Composed(stage)
    return [
        ("Redis and exporter", rolling.redis_and_exporter),
        ("worker with a real model", real.starts),
        ("first request, by helm test", real.first_request),
        ("answers inside", real.answers),
        ("stopping it in long answers", real.stops),
        ("answers outside", real.same_outside),
        ("two workers", rolling.two_workers),
        ("rollout under load", rolling.rollout),
        ("what was handed back", rolling.handed_back),
        ("SIGKILL of a container", rolling.sigkill),
        ("none, and two again", rolling.none_and_back),
        ("Redis restarted", rolling.redis_restarted),
        ("gateways from outside", callers.gateways),
        ("a file of both gateways", callers.shared_files),
        ("wrong Secret", trouble.wrong_secret),
        ("missing model", trouble.missing_model),
        ("first lines of logs", stage.first_lines),
        ("users and rights", stage.rights),
        ("HOME in memory", stage.home_in_memory),
        ("any user of group 0", stage.any_user),
        ("probes and memory", stage.probes_and_memory),
        ("full volume of files", trouble.full_files),
        ("full volume of Redis", trouble.full_redis),
        ("compose: first request", composed.starts),
        ("compose: SIGKILL", composed.sigkill),
        ("compose: rolling update", composed.rolling_update),
        ("compose: none, and two again", composed.none_and_back),
        ("compose: drain, and the end", composed.drained),
    ]


def tell(name: str, fine: bool, began: float, what: str) -> None:
    """Print a line."""
    print(f"{'ok' if fine else 'FAILED':<6} {time.monotonic() - began:>4.0f} s {name:<28} {what}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
