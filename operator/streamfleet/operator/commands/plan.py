"""`streamfleet plan`, and `streamfleet plan measure`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from streamfleet.common.protocol import Lane
from streamfleet.operator.commands.common import AsJson, QueueName, RedisUrl, connected, out, queue_settings, run, say

if TYPE_CHECKING:
    from streamfleet.common.settings import QueueSettings
    from streamfleet.operator.plan.lengths import Lengths
    from streamfleet.operator.plan.measure import MeasureOptions
    from streamfleet.operator.plan.planning import Asked, Plan
    from streamfleet.operator.plan.profile import EngineProfile

plan = typer.Typer(name="plan")

Profile = Annotated[
    Path | None, typer.Option("--profile", "-p", metavar="FILE", help="The engine, as `plan measure` wrote it.")
]
Rate = Annotated[float | None, typer.Option("--rate", "-r", help="Mean requests per second, at random moments.")]
Trace = Annotated[
    Path | None,
    typer.Option(
        "--trace",
        "-t",
        metavar="FILE.jsonl",
        help="Recorded arrivals in place of --rate; a line has at_ms, prompt_tokens, output_tokens, lane, deadline_ms. "
        "With --queue, tenant and max_tokens may stand in place of output_tokens.",
    ),
]
Prompt = Annotated[int | None, typer.Option("--prompt-tokens", help="Mean length of prompts.")]
Output = Annotated[int | None, typer.Option("--output-tokens", help="Mean length of answers.")]
LearntFrom = Annotated[
    str | None,
    typer.Option(
        "--queue",
        "-q",
        metavar="NAME",
        help="Take lengths that are not given from what this queue has learnt, by tenant and asked limit. Needs Redis.",
    ),
]
Spread = Annotated[
    Literal["log-normal", "fixed"], typer.Option("--lengths", help="How lengths are spread around their means.")
]
Deadline = Annotated[
    str | None, typer.Option("--deadline", "-d", metavar="SPAN", help="After so long an answer is worthless: 30s, 2m.")
]
InLane = Annotated[Lane, typer.Option("--lane", "-l", help="Where requests go.")]
Late = Annotated[str, typer.Option("--late", metavar="N%", help="Share of requests that may be late.")]
Spare = Annotated[int, typer.Option("--spare", help="Workers that may fail.")]
BatchSize = Annotated[
    int | None, typer.Option("--batch-size", help="Requests at once in an engine. Default: BATCH_SIZE, then its slots.")
]
Seed = Annotated[int, typer.Option("--seed", help="Of all that is drawn: the same seed, the same plan.")]
Runs = Annotated[int, typer.Option("--runs", help="How many runs are simulated, each with other arrivals.")]
Requests = Annotated[int, typer.Option("--requests", help="Requests of each run.")]
Most = Annotated[int, typer.Option("--most", help="Workers beyond which there is no plan.")]


@plan.callback(invoke_without_command=True)
def plan_workers(  # noqa: PLR0913, PLR0917 - each parameter is an option
    context: typer.Context,
    profile: Profile = None,
    rate: Rate = None,
    trace: Trace = None,
    prompt_tokens: Prompt = None,
    output_tokens: Output = None,
    lengths: Spread = "log-normal",
    deadline: Deadline = None,
    lane: InLane = Lane.NORMAL,
    late: Late = "1%",
    spare: Spare = 0,
    batch_size: BatchSize = None,
    seed: Seed = 0,
    runs: Runs = 3,
    requests: Requests = 10_000,
    most: Most = 1_000,
    as_json: AsJson = False,
    redis_url: RedisUrl = None,
    queue: LearntFrom = None,
) -> None:
    """Find the smallest number of workers with which at most a share of requests is late, by simulation.

    Takes an engine that was measured, what arrives, and when it is due. A request is late when it has no answer by its
    deadline. Shows the fleet found beside one worker fewer and one more. Takes some seconds, and uses no Redis unless
    --queue names a queue: then lengths that are not given are those that the queue's tenants have had lately.
    docs/performance.md tells how far to trust it.

    ```text
    streamfleet plan measure --out engine.json
    streamfleet plan --profile engine.json --rate 20 --prompt-tokens 300 --output-tokens 150 --deadline 30s --late 0.5%
    streamfleet plan --profile engine.json --trace traffic.jsonl --late 1% --spare 1
    streamfleet plan --profile engine.json --rate 20 --queue default --deadline 30s
    ```
    """
    if context.invoked_subcommand is not None:
        return
    from streamfleet.operator.plan.planning import Asked

    asked = Asked(
        profile, rate, trace, prompt_tokens, output_tokens, lengths, deadline, lane, late, spare, batch_size, seed,
        runs, requests, most, run(_learnt(queue_settings(redis_url, queue))) if queue is not None else None,
    )  # fmt: skip
    found = _planned(asked)
    if as_json:
        from streamfleet.operator.plan.view import as_json_values

        out(json.dumps(as_json_values(found.found, found.late, found.spare, found.basis), indent=2))
        return
    from streamfleet.operator.commands.fitted_table import screen
    from streamfleet.operator.plan.view import render

    screen().print(render(found.found, found.late, found.spare, found.basis))


async def _learnt(settings: QueueSettings) -> Lengths:
    from streamfleet.operator.plan.lengths import learnt

    async with connected(settings) as broker:
        return learnt(await broker.audit(0))


def _planned(asked: Asked) -> Plan:
    """Compute the plan, and show the progress of the simulation."""
    from rich.console import Console

    from streamfleet.operator.plan.planning import plan_fleet

    with Console(stderr=True).status("reading") as status:
        return plan_fleet(asked, lambda workers: status.update(f"simulating {workers} workers"))


@plan.command("measure")
def measure(  # noqa: PLR0913, PLR0917 - each parameter is an option
    output: Annotated[
        Path, typer.Option("--out", "-o", metavar="FILE", dir_okay=False, help="Where the profile goes.")
    ],
    prompt_tokens: Annotated[
        int, typer.Option("--prompt-tokens", min=8, max=1_000_000, help="Length of the longer prompts: like yours.")
    ] = 256,
    output_tokens: Annotated[
        int, typer.Option("--output-tokens", min=16, max=100_000, help="Length of the longer answers.")
    ] = 64,
    up_to: Annotated[
        int | None, typer.Option("--up-to", min=1, max=100_000, help="Most requests at once. Default: the slots.")
    ] = None,
    rounds: Annotated[int, typer.Option("--rounds", min=1, max=100, help="How often all is measured.")] = 2,
    name: Annotated[str | None, typer.Option("--name", help="What the profile is called. Default: the model.")] = None,
    kv_tokens: Annotated[
        int | None, typer.Option("--kv-tokens", min=1, help="Tokens of KV cache, as the engine logs it at its start.")
    ] = None,
    max_model_len: Annotated[
        int | None, typer.Option("--max-model-len", min=2, help="Most tokens of one request, prompt and answer.")
    ] = None,
    as_json: AsJson = False,
    redis_url: RedisUrl = None,
    queue: QueueName = None,
) -> None:
    """Measure the engine of a worker that is alone on its queue and has nothing else to do.

    Sends waves of requests, 1, 2, 4, … at once up to the worker's slots, with long and short prompts and answers, and
    fits the time of a prompt token and of a step to them. Measure the engine, model and machine that you will deploy,
    with lengths like yours. Each wave takes as long as its answers: minutes in all.

    ```text
    streamfleet worker --queue measure --model Qwen/Qwen2.5-7B-Instruct
    streamfleet plan measure --queue measure --out engine.json --prompt-tokens 300 --output-tokens 150
    ```
    """
    from streamfleet.operator.plan.measure import MeasureOptions

    if not output.parent.is_dir():
        raise typer.BadParameter(f"there is no folder {output.parent} to write {output.name} in")
    options = MeasureOptions(prompt_tokens, output_tokens, up_to, rounds, name, kv_tokens, max_model_len)
    found = run(_measure(queue_settings(redis_url, queue), options))
    found.save(output)
    from streamfleet.operator.commands.fitted_table import screen
    from streamfleet.operator.plan.view import render_profile

    out(json.dumps(found.to_json(), indent=2)) if as_json else screen().print(render_profile(found))
    say(f"written to {output}; next: streamfleet plan --profile {output} --rate … --deadline …")


async def _measure(settings: QueueSettings, options: MeasureOptions) -> EngineProfile:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from streamfleet.operator.plan.measure import WaveShape, measure_engine
    from streamfleet.producer.client import Client

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    async with Client(settings=settings) as client:
        with Progress(*columns, console=Console(stderr=True)) as progress:
            task = progress.add_task("measuring", total=None)

            def shown(done: int, total: int, shape: WaveShape) -> None:
                words = f"{shape.together} at once, {shape.prompt_tokens} + {shape.output_tokens} tokens"
                progress.update(task, total=total, completed=done, description=words)

            return await measure_engine(client, options, shown)
