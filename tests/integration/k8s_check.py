"""`make k8s-check`: a line for the base, each overlay and each example of the chart, and what is wrong with them.

Then a day under each of the chart's triggers.
"""

import subprocess
import sys
from pathlib import Path

from tests.integration.k8s_chart import examples, faults
from tests.integration.k8s_day import outcomes, table
from tests.integration.k8s_manifests import K8S, kustomizations, render
from tests.integration.k8s_programs import HELM, RendererMissingError
from tests.integration.k8s_rules import RULES, broken_rules
from tests.integration.k8s_schemas import RELEASES


def main(root: Path = K8S) -> int:
    """Check all of them. Returns the exit status: 0 when nothing is wrong."""
    broken, rendered = 0, {}
    for name, folder in kustomizations(root).items():
        try:
            manifests = rendered[name] = render(folder)
        except subprocess.CalledProcessError as error:
            print(f"{name:<16} does not render: {error.stderr.strip()}")
            broken += 1
            continue
        broken += _told(f"{name:<16} {len(manifests):>2} manifests", broken_rules(manifests))
    for name in ("base", *examples(root)):
        equal = ", equal to the overlay" if name in rendered else ""
        broken += _told(
            f"{name:<16} of the chart, Helm {' and '.join(HELM)}{equal}", faults(name, rendered.get(name), root)
        )
    return 1 if broken else 0


def _told(what: str, wrong: list[str]) -> bool:
    """Print what was checked, and what is wrong. True if something is."""
    verdict = f"{len(wrong)} found wrong" if wrong else f"all {len(RULES)} rules hold"
    print(f"{what}, Kubernetes {' and '.join(RELEASES)}: {verdict}")
    for line in wrong:
        print(f"  {line}")
    return bool(wrong)


if __name__ == "__main__":
    try:
        status = main()
        print(table(outcomes()))
        sys.exit(status)
    except RendererMissingError as error:
        sys.exit(str(error))
