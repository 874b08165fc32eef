"""`streamfleet exporter`."""

from __future__ import annotations

from typing import Annotated

import typer

from streamfleet.operator.commands.common import QueueName, RedisUrl


def exporter(
    host: Annotated[
        str | None,
        typer.Option("--host", help="Where to listen. Default: STREAMFLEET_EXPORTER_HOST, then 127.0.0.1."),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option("--port", help="Port; 0 picks a free one. Default: STREAMFLEET_EXPORTER_PORT, then 9101."),
    ] = None,
    redis_url: RedisUrl = None,
    queue: QueueName = None,
) -> None:
    """Serve the queue's metrics to Prometheus until SIGTERM or Ctrl-C: depth, ages, deadlines, workers.

    One for each queue; it needs no worker. A scrape costs Redis as much with a million requests as with ten
    (docs/metrics.md). Also /livez, and /readyz, which says why Redis does not answer.

    ```text
    streamfleet exporter
    streamfleet exporter --queue llama-70b --host 0.0.0.0 --port 9101
    curl -s http://127.0.0.1:9101/metrics | grep ^streamfleet_queue_
    ```
    """
    from streamfleet.common.settings import load_for_exporter

    settings = load_for_exporter(redis_url=redis_url, queue=queue, exporter_host=host, exporter_port=port)
    from streamfleet.operator.exporter.endpoint import run_exporter

    run_exporter(*settings)
