#!/bin/sh
# Makes .venv with what the named profiles need (dev, vllm, bench, system, lint); quick when there is nothing to do.
# Finds a Python that fits; set PYTHON to choose another. `node` stands alone: Node, its packages and Chromium.
set -eu
cd "$(dirname "$0")/.."
[ "${1:-}" != node ] || exec tools/setup_node.sh

fits() {
    "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' >/dev/null 2>&1
}

if [ -n "${PYTHON:-}" ]; then
    candidates=$PYTHON
else
    candidates="python3 python3.11 python3.12 python3.13"
    # The one that is there stays, unless making it was interrupted.
    [ ! -x .venv/bin/pip ] || candidates=".venv/bin/python $candidates"
fi
for candidate in $candidates; do
    if fits "$candidate"; then
        exec "$candidate" tools/setup_venv.py "$@"
    fi
done

found=$(python3 --version 2>/dev/null || echo "no python3 at all")
cat >&2 <<MESSAGE
streamfleet needs Python 3.11, 3.12 or 3.13; this machine has: ${PYTHON:-$found}.
Install one, for example:
  Debian, Ubuntu   sudo apt-get install python3 python3-venv
  Fedora           sudo dnf install python3.12
  macOS            brew install python@3.12
or name one that is not on PATH:  PYTHON=/path/to/python3.12 make …
MESSAGE
exit 1
