#!/bin/sh
# Pins the newest versions of all dependencies, for every supported Python and platform, in requirements/*.txt.
# No header, because it would record this command line; no index address and no local path either.
set -eu
cd "$(dirname "$0")/.."

if ! command -v uv >/dev/null 2>&1; then
    echo "make lock needs uv: https://docs.astral.sh/uv/" >&2
    exit 1
fi

resolve() {
    uv pip compile --quiet --universal --no-header --no-annotate --python-version 3.11 \
        --no-emit-package streamfleet "$@"
}

# Everything together first: the files then agree, and can be installed one after the other in any order.
together=$(mktemp)
trap 'rm -f "$together"' EXIT
resolve --upgrade pyproject.toml requirements/vllm.in --extra cpu --extra demo --extra dev --extra bench \
    --output-file "$together"
resolve --constraint "$together" pyproject.toml --extra dev --output-file requirements/dev.txt
resolve --constraint "$together" pyproject.toml requirements/vllm.in --extra cpu --extra demo \
    --output-file requirements/vllm.txt
resolve --constraint "$together" pyproject.toml --extra bench --output-file requirements/bench.txt
# What the gateway's image has, in no environment with the others: botocore wants an older python-dateutil than they do.
resolve --upgrade --constraint requirements/dev.txt pyproject.toml --extra gateway --extra s3 \
    --output-file requirements/gateway.txt
