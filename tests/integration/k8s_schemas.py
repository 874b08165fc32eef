"""Checks manifests as an API server would: by the schemas of Kubernetes, and of what is installed beside it.

Kubernetes drops a field of a custom resource that it does not know, or refuses the apply; the schemas in schemas/ name
the fields that are used here, and no others.
"""

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]
from jsonschema import Draft202012Validator

from tests.integration.k8s_manifests import Manifest, name_of

# The oldest release that knows everything used (preStop's sleep), and the newest that there are schemas for.
RELEASES = ("1.30", kubernetes_validate.latest_version())
# It would read a megabyte of JSON for each manifest.
kubernetes_validate.utils.schema_contents = cache(kubernetes_validate.utils.schema_contents)
SCHEMAS = Path(__file__).parent / "schemas"
CUSTOM = tuple(
    json.loads(each.read_text(encoding="utf-8"))["properties"]["kind"]["const"]
    for each in sorted(SCHEMAS.glob("*.json"))
)


def refusals(manifest: Manifest) -> Iterator[str]:
    """Yields the faults of one manifest, a line each."""
    yield from _refusals(json.dumps(manifest))


@cache
def _refusals(text: str) -> tuple[str, ...]:
    # Most tests change one manifest of twenty: the others need no second look.
    return tuple(_found(json.loads(text)))


def _found(manifest: Manifest) -> Iterator[str]:
    if manifest["kind"] in CUSTOM:
        for error in _validator(manifest["kind"]).iter_errors(manifest):
            yield f"{manifest['apiVersion']}: {name_of(manifest)}: {_path(error.path)}: {error.message}"
        return
    for release in RELEASES:
        try:
            kubernetes_validate.validate(manifest, release, strict=True)
        except kubernetes_validate.ValidationError as error:
            yield f"{release}: {name_of(manifest)}: {_path(error.path)}: {error.message}"


def _path(steps: Any) -> str:
    return ".".join(map(str, steps))


@cache
def _validator(kind: str) -> Draft202012Validator:
    schema = json.loads((SCHEMAS / f"{kind.lower()}.json").read_text(encoding="utf-8"))
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)
