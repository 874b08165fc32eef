"""`streamfleet worker`."""

from __future__ import annotations

from typing import Annotated

import typer

from streamfleet.operator.commands.common import QueueName, RedisUrl


def worker(
    engine: Annotated[
        str | None, typer.Option("--engine", help="vllm, openai or simulated. Default: STREAMFLEET_ENGINE.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", help="Model name or folder, as vLLM takes it. Default: STREAMFLEET_MODEL."),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option("--name", help="Default: STREAMFLEET_WORKER_NAME, then host, process id, a random part."),
    ] = None,
    redis_url: RedisUrl = None,
    queue: QueueName = None,
    models: Annotated[
        str | None,
        typer.Option(
            "--models", help="Several queues: MODEL=QUEUE,… Default: STREAMFLEET_WORKER_MODELS, or one queue."
        ),
    ] = None,
    engine_args: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[-- ENGINE ARGS]...",
            help="vLLM's own arguments, as vLLM names them. Default: STREAMFLEET_ENGINE_ARGS.",
        ),
    ] = None,
) -> None:
    """Run a worker until SIGTERM or Ctrl-C, which let it finish what it runs.

    Everything else is set by environment variables: docs/configuration.md has them all.

    ```text
    streamfleet worker --model Qwen/Qwen2.5-7B-Instruct
    streamfleet worker -m ./model -- --max-num-seqs 64 --enable-prefix-caching
    streamfleet worker -m ./model --models ./model=chat,sql=sql -- --enable-lora --lora-modules sql=./sql-lora
    VLLM_URL=http://localhost:8000 streamfleet worker
    ```
    """
    from streamfleet.common.settings import load_all

    settings = load_all(
        redis_url=redis_url,
        queue=queue,
        engine=engine,
        model=model,
        engine_args=tuple(engine_args) if engine_args else None,
        worker_name=name,
        worker_models=models,
    )
    from streamfleet.worker.main import run_worker

    raise typer.Exit(run_worker(*settings))
