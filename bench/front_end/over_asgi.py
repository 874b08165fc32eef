"""A worker's engine without its direct calls: each request goes through vLLM's whole application, over ASGI.

This module is also such a worker: `python -m bench.front_end.over_asgi`, with a worker's settings.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any

from streamfleet.common.settings import load_all
from streamfleet.worker.engine.base import Engine
from streamfleet.worker.engine.factory import build
from streamfleet.worker.main import run_worker

DIRECT = "_direct"
"""Attribute of `VllmEngine`: its direct calls of vLLM. All requests go over ASGI while this is None."""
TAPPED = ("generate", "encode")
"""Methods of vLLM's engine around which a worker counts requests and tokens."""


def goes_directly(engine: Any) -> bool:
    """True if a started `VllmEngine` calls vLLM directly."""
    return getattr(engine, DIRECT, None) is not None


def switch_off(engine: Any, *, tap: bool = False) -> Callable[[], None]:
    """Take what direct calls need out of a started `VllmEngine`; returns the function that puts it back.

    Args:
        engine: the engine.
        tap: also take the worker's own methods from around `TAPPED`, so that nothing but vLLM is left.
    """
    llm, envs = engine._hosted.engine, importlib.import_module("vllm.envs")  # noqa: SLF001
    taken = [(engine, DIRECT), (llm.renderer, "render_chat_async"), *((llm, name) for name in TAPPED if tap)]
    found = [(of, name, vars(of)[name]) for of, name in taken if name in vars(of)]
    cached = hasattr(envs.__getattr__, "cache_clear")
    for of, name, _ in found:
        if of is engine:
            setattr(of, name, None)
        else:
            delattr(of, name)  # the class has vLLM's own
    if cached:
        envs.disable_envs_cache()

    def put_back() -> None:
        for of, name, value in found:
            setattr(of, name, value)
        if cached:
            envs.enable_envs_cache()

    return put_back


def _engine(*settings: Any) -> Engine:
    engine = build(*settings)
    start = engine.start

    async def start_without() -> None:
        await start()
        switch_off(engine)

    engine.start = start_without  # type: ignore[method-assign]
    return engine


if __name__ == "__main__":
    sys.exit(run_worker(*load_all(health_port=0), _engine))
