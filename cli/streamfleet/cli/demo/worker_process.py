"""The demo's worker: the real one, as a separate process."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from streamfleet.cli.demo.model import MODEL_NAME, model_folder
from streamfleet.cli.demo.own_process import OwnProcess, environment
from streamfleet.operator.broker import OperatorBroker

PLAIN_PROGRESS_S = 10.0
ENGINE_ARGS = ("--max-num-seqs", "4", "--max-model-len", "2048", "--served-model-name", MODEL_NAME)


def engine_arguments(engine: str, screen: Console, step: str) -> list[str]:
    """The worker's arguments for its engine; for vLLM, the model's folder is created first if it is missing.

    Args:
        engine: ``vllm`` or ``simulated``.
        screen: console for messages.
        step: prefix of messages, for example `2/5`.

    Raises:
        ModelMissing: the model is not installed.
    """
    if engine != "vllm":
        screen.print(f"[bold]{step}[/] No model: the engine is simulated, and so are its answers")
        return ["--engine", engine]
    folder = model_folder(lambda text: screen.print(f"    {text}", style="dim"))
    screen.print(f"[bold]{step}[/] Model: {folder.name}, run by vLLM in the worker's process")
    return ["--engine", engine, "--model", str(folder), "--", *ENGINE_ARGS]


class WorkerProcess(OwnProcess):
    """`streamfleet worker` on a queue, with its log in a file.

    Args:
        redis_url, queue: the queue to work on.
        log_file: file for its log.
        arguments: further command-line arguments of the worker.
    """

    def __init__(self, redis_url: str, queue: str, log_file: Path, arguments: Sequence[str]) -> None:
        env = environment(redis_url, health_port="0", log_format="console")
        super().__init__(["worker", "--queue", queue, *arguments], log_file, env)

    async def until_ready(self, broker: OperatorBroker, screen: Console, step: str) -> None:
        """Wait until the engine is loaded, and show the elapsed time meanwhile.

        Raises:
            ProcessEnded: the worker ended first.
        """
        started = said = time.monotonic()

        async def ready() -> bool:
            nonlocal said
            now = time.monotonic()
            text = f"Worker is loading its engine ({now - started:.0f} s; log: {self.log_file})"
            status.update(f"[bold]{step}[/] {text}")
            if not screen.is_terminal and now - said >= PLAIN_PROGRESS_S:
                said = now
                screen.print(f"    {text}", soft_wrap=True, highlight=False)
            return any(worker["state"] == "ready" for worker in (await broker.workers()).values())

        with screen.status(f"[bold]{step}[/] Worker is starting") as status:
            await self.until(ready)
        screen.print(f"[bold]{step}[/] Worker is ready after {time.monotonic() - started:.0f} s")
