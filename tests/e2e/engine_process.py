"""A worker process reduced to its engine: starts the vLLM of a model's folder and waits, to be killed by a test."""

from __future__ import annotations

import asyncio
import sys

from streamfleet.worker.engine.vllm import VllmEngine
from tests.contract.subjects import VLLM_ARGS


async def main(model: str) -> None:
    """Keep an engine until this process ends."""
    engine = VllmEngine(model, VLLM_ARGS)
    await engine.start()
    await engine.failed()


if __name__ == "__main__":  # vLLM's processes import this module anew
    asyncio.run(main(sys.argv[1]))
