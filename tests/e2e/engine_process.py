"""A worker process reduced to its engine: starts vLLM and waits, to be killed by a test.

    python -m tests.e2e.engine_process MODEL

prints "starting" and then "ready".
"""

from __future__ import annotations

import asyncio
import sys

from streamfleet.worker.engine.vllm import VllmEngine
from tests.contract.subjects import VLLM_ARGS


async def main(model: str) -> None:
    """Keep an engine until this process ends."""
    engine = VllmEngine(model, VLLM_ARGS)
    print("starting", flush=True)
    await engine.start()
    print("ready", flush=True)
    await engine.failed()


if __name__ == "__main__":  # vLLM's processes import this module anew
    asyncio.run(main(sys.argv[1]))
