"""`make k8s-check`: one line for the base and for every overlay of k8s/, and what is wrong with them."""

import subprocess
import sys
from pathlib import Path

from tests.integration.k8s_manifests import K8S, kustomizations, render
from tests.integration.k8s_rules import RULES, broken_rules
from tests.integration.k8s_schemas import RELEASES
from tests.integration.kubectl import RendererMissingError


def main(root: Path = K8S) -> int:
    """Check all of them. Returns the exit status: 0 when nothing is wrong."""
    broken = 0
    for name, folder in kustomizations(root).items():
        try:
            manifests = render(folder)
        except subprocess.CalledProcessError as error:
            print(f"{name:<16} does not render: {error.stderr.strip()}")
            broken += 1
            continue
        wrong = broken_rules(manifests)
        verdict = f"{len(wrong)} found wrong" if wrong else f"all {len(RULES)} rules hold"
        print(f"{name:<16} {len(manifests):>2} manifests, Kubernetes {' and '.join(RELEASES)}: {verdict}")
        for line in wrong:
            print(f"  {line}")
        broken += bool(wrong)
    return 1 if broken else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except RendererMissingError as error:
        sys.exit(str(error))
