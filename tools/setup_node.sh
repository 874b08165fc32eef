#!/bin/sh
# Installs what tests in Node need, for each folder of tests/ with a package.json; quick when there is nothing to do.
# Without Node, those tests are skipped: this says so, and is no failure.
set -eu
cd "$(dirname "$0")/.."

if ! command -v node >/dev/null || ! command -v npm >/dev/null; then
    echo "streamfleet set-up: no node and npm here, tests with them are skipped: sudo apt-get install nodejs npm"
    exit 0
fi
for package in tests/*/package.json tests/*/*/package.json; do
    folder=$(dirname "$package")
    stamp="$folder/node_modules/.installed"
    if [ ! -f "$package" ] || cmp -s "$package" "$stamp"; then
        continue
    fi
    echo "streamfleet set-up: installing what $folder needs with npm …"
    (cd "$folder" && npm install --no-package-lock --ignore-scripts --no-audit --no-fund --loglevel=error)
    cp "$package" "$stamp"
done
