"""`streamfleet demo-gateway`: OpenAI's API over HTTP on real parts, asked with curl and OpenAI's SDK, and the page.

The batch goes through OpenAI's Batch API with curl: a file in, its output file out, and a webhook when it has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
import sys
import tempfile
import time
import webbrowser
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
from rich.console import Console

from streamfleet.cli.demo import gateway_calls
from streamfleet.cli.demo.gateway_calls import AUTHORISED, POST_JSON, parsed, quoted
from streamfleet.cli.demo.gateway_process import GatewayProcess
from streamfleet.cli.demo.hook import Receiver
from streamfleet.cli.demo.own_process import environment
from streamfleet.cli.demo.prompts import chat
from streamfleet.cli.demo.server import RedisServer
from streamfleet.cli.demo.shell import Shell
from streamfleet.cli.demo.signals import Signals, interruptible
from streamfleet.cli.demo.worker_process import WorkerProcess, engine_arguments
from streamfleet.common.connection import Connection
from streamfleet.common.errors import SettingsError, StreamfleetError
from streamfleet.common.keys import Keys
from streamfleet.operator.broker import OperatorBroker
from streamfleet.operator.broker.audit import Audit

QUEUE = "default"
TENANT = "demo"
EVERY_S = 3.0
REQUEST_TIMEOUT_S = 120.0
KEEP = "keep"
"""Marker file that keeps the demo's folder from being deleted."""
FILE = "requests.jsonl"
QUESTIONS = (
    "Name a colour.",
    "Name a fruit.",
    "Name an ocean.",
    "Name a planet.",
    "Name a metal.",
    "Is the sun a star?",
    "What is ice made of?",
    "Say hello in French.",
)
ENDED = ("completed", "failed", "expired", "cancelled")
BATCH_TIMEOUT_S = 300.0
WEBHOOK_TIMEOUT_S = 60.0


class StepFailed(StreamfleetError):
    """A step that all later ones need has failed; the message names it."""


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the demo.

    Attributes:
        engine: ``vllm``, or ``simulated`` if no vLLM is installed.
        port: port of the gateway; 0 for any free one.
        stay: leave everything running at the end, until Ctrl-C.
        open: open a browser on the page.
    """

    engine: str = "vllm"
    port: int = 0
    stay: bool = False
    open: bool = False


def demo_gateway(options: Options, console: Console | None = None) -> int:
    """Run the demo from start to end.

    Returns:
        0 if all checks passed; 1 otherwise, with a printed line for each problem.

    Raises:
        StreamfleetError: a part is missing or did not start; the message tells the remedy.
        KeyboardInterrupt: Ctrl-C, SIGTERM or SIGHUP before its end; everything has been ended.
    """
    screen = console or Console()
    if shutil.which("curl") is None:
        raise SettingsError(
            "the demo asks with curl, which is not installed; on Debian and Ubuntu: apt-get install curl"
        )
    screen.rule("[bold]streamfleet demo-gateway")
    try:
        with interruptible():
            status = _in_own_folder(options, screen)
    except KeyboardInterrupt:
        status = None
    if status is None:
        screen.print("\ninterrupted; all that was started has been ended")
        raise KeyboardInterrupt
    return status


def _in_own_folder(options: Options, screen: Console) -> int | None:
    with own_folder() as folder, RedisServer() as server:
        kind = server.label.split("-")[0].capitalize()
        screen.print(f"[bold]1/8[/] Redis: {kind} {server.version} of its own on port {server.port}")
        arguments = engine_arguments(options.engine, screen, "2/8")
        return asyncio.run(_Demo(screen, server.url, folder, arguments, options).run())


@contextlib.contextmanager
def own_folder() -> Iterator[Path]:
    """A temporary folder, deleted afterwards; after a failure it stays, for its logs."""
    folder = Path(tempfile.mkdtemp(prefix="streamfleet-demo-"))
    try:
        yield folder
    except StreamfleetError:
        (folder / KEEP).touch()
        raise
    finally:
        if not (folder / KEEP).exists():
            shutil.rmtree(folder, ignore_errors=True)


class _Demo:
    def __init__(self, screen: Console, url: str, folder: Path, arguments: list[str], options: Options) -> None:
        self._screen, self._url, self._folder, self._options = screen, url, folder, options
        self._broker = OperatorBroker(Connection(url), Keys(QUEUE))
        self._worker = WorkerProcess(url, QUEUE, folder / "worker.log", arguments)
        self._gateway = GatewayProcess(url, folder, options.port)
        # The commands shown must be those of this installation.
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
        self._env = {**environment(url), "PATH": path, "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
        self._signals = Signals()
        self._problems: list[str] = []
        self._keys: dict[str, str] = {}

    async def run(self) -> int | None:
        """Run the demo. Returns the exit status; None if it was interrupted."""
        with self._signals.handled():
            try:
                await self._run()
                # Stop callers before workers.
                await self._gateway.stop()
                await self._worker.stop()
                return self._verdict(await self._broker.audit())
            except asyncio.CancelledError:
                return None
            finally:
                await self._gateway.stop()
                await self._worker.stop()
                await self._broker.close()

    async def _run(self) -> None:
        await self._worker.start()  # first, because it takes longest
        await self._gateway.start()
        url = await self._start()
        await self._worker.until_ready(self._broker, self._screen, "4/8")
        shell = Shell(self._screen, self._folder, self._env)
        async with Receiver(self._keys["webhooks"]).serving() as receiver:
            model = await self._ask(shell, receiver)
        await self._page(shell, url)
        counted = await self._broker.audit()
        if counted.ended["succeeded"] != counted.accepted:
            self._problems.append(f"every request should have succeeded: {counted.line()}")
        if self._options.stay:
            await self._stay(shell, url, model)

    async def _start(self) -> str:
        shell = Shell(self._screen, self._folder, self._env)
        self._say("3/8", "Keys, and the gateway")
        self._keys["demo"] = await self._made(shell, f"streamfleet gateway keys create {TENANT}", "sf-")
        self._keys["operator"] = await self._made(shell, "streamfleet gateway keys create operator --operator", "sf-")
        webhooks = f"streamfleet gateway webhooks secret create --tenant {TENANT}"
        self._keys["webhooks"] = await self._made(shell, webhooks, "whsec_")
        url = f"http://127.0.0.1:{await self._gateway.until_listening()}"
        variables = {
            "GATEWAY": url,
            "OPENAI_BASE_URL": f"{url}/v1",
            "OPENAI_API_KEY": self._keys["demo"],
            "OPERATOR_KEY": self._keys["operator"],
        }
        self._env |= variables
        shell.say(f"\nThe gateway listens: {url}. What follows can be typed in another terminal as well, after")
        for name, value in variables.items():
            shell.say(f"export {name}={value}", "cyan")
        return url

    async def _made(self, shell: Shell, command: str, prefix: str) -> str:
        """Run a command that creates a secret, and return the secret."""
        answer = await shell.run(command)
        found = re.search(rf"^{prefix}\S+$", answer, re.MULTILINE)
        if found is None:
            raise StepFailed(f"`{command}` printed no {prefix}…, and all else needs it: {answer.strip()[-300:]}")
        return found[0]

    async def _ask(self, shell: Shell, receiver: Receiver) -> str:
        expected = "Paris" if self._options.engine == "vllm" else ""
        self._say("5/8", "curl")
        model = await gateway_calls.first_model(shell)
        if not model:
            raise StepFailed(f"GET /v1/models names no model, though a worker is ready; logs: {self._folder}")
        self._problems += await gateway_calls.ask(shell, model, expected)
        self._problems += await gateway_calls.ask_for_stream(shell, model)
        self._say("6/8", "OpenAI's Python SDK")
        self._problems += await gateway_calls.ask_with_sdk(shell, model, self._folder, expected)
        self._say("7/8", "A batch, and a webhook when it has ended")
        self._problems += await run_batch(shell, model, self._folder, receiver)
        return model

    async def _page(self, shell: Shell, url: str) -> None:
        self._say("8/8", "The page")
        self._problems += await _look_at_page(shell)
        shell.say(f"\nThe page:      {url}/ui", "bold")
        shell.say(f"Operator key:  {self._keys['operator']}", "bold")
        if self._options.open:
            _open_page(shell, f"{url}/ui")

    async def _stay(self, shell: Shell, url: str, model: str) -> None:
        """Keep all parts running until Ctrl-C. Requests of the user meanwhile are not checked."""
        shell.say(f"Look on: REDIS_URL={self._url} streamfleet backlog --watch")
        with self._signals.waited_for() as leave:
            shell.say("All of it goes on, with a small request every few seconds, until Ctrl-C.")
            busy = asyncio.create_task(_keep_busy(url, self._keys["demo"], model))
            try:
                await leave.wait()
            finally:
                busy.cancel()
                await asyncio.gather(busy, return_exceptions=True)

    def _say(self, step: str, text: str) -> None:
        self._screen.print(f"\n[bold]{step}[/] {text}", highlight=False)

    def _verdict(self, audit: Audit) -> int:
        problems = [*self._problems, *audit.problems()]
        self._screen.print()
        for problem in problems:
            self._screen.print(f"not as it should be: {problem}", style="red", markup=False, soft_wrap=True)
        if problems:
            (self._folder / KEEP).touch()
            self._screen.print(f"logs: {self._folder}", highlight=False, soft_wrap=True)
        self._screen.print(audit.line(), highlight=False, soft_wrap=True)
        return 1 if problems else 0


async def _look_at_page(shell: Shell) -> list[str]:
    """Request the page, and its data with the operator's key. Returns the problems."""
    page = await shell.run("curl -sS -o /dev/null -w '%{http_code} %{content_type}\\n' $GATEWAY/ui")
    problems = []
    if not page.startswith("200 text/html"):
        problems.append(f"page: GET /ui should be 200 text/html, not {page.strip()}")
    data = await shell.run('curl -sS $GATEWAY/ui/api/overview -H "Authorization: Bearer $OPERATOR_KEY"')
    if '"lanes"' not in data:
        problems.append("page: /ui/api/overview should have the lanes")
    return problems


def _has_desktop() -> bool:
    """True if this machine has a display."""
    return sys.platform == "darwin" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def _open_page(shell: Shell, url: str) -> None:
    """Open a browser on a desktop; elsewhere print the reason why not."""
    if not _has_desktop():
        shell.say("no browser opened: there is no display here (neither DISPLAY nor WAYLAND_DISPLAY is set)", "yellow")
    elif not webbrowser.open(url):
        shell.say("no browser opened: none was found; open the address yourself", "yellow")


async def _keep_busy(url: str, key: str, model: str) -> None:
    """Send a small request every few seconds until cancelled, so that the page shows activity.

    Args:
        url: URL of the gateway.
        key: an API key.
        model: model to ask.
    """
    headers = {"Authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=REQUEST_TIMEOUT_S, trust_env=False) as client:
        while True:
            # Failures are ignored here: the page shows them, and the audit counts them.
            with contextlib.suppress(httpx.HTTPError):
                await client.post("/v1/chat/completions", json={"model": model, **chat(gateway_calls.CAPITAL, 16)})
            await asyncio.sleep(EVERY_S)


async def run_batch(shell: Shell, model: str, folder: Path, receiver: Receiver) -> list[str]:
    """Run a batch from its file to its output and the webhook. Returns the problems."""
    lines = batch_lines(model)
    (folder / FILE).write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    shell.say(f"{folder / FILE} has {len(lines)} lines like this one:")
    shell.say(shell.short(lines[0]), "cyan")
    upload = f"curl -sS $OPENAI_BASE_URL/files {AUTHORISED} -F purpose=batch -F file=@{FILE}"
    file_id = parsed(await shell.run(upload)).get("id")
    if not file_id:
        return ["batch: the file should be taken"]
    wish = {
        "input_file_id": file_id,
        "endpoint": "/v1/chat/completions",
        "completion_window": "1h",
        "callback_url": receiver.url,
    }
    batch_id = parsed(await shell.run(f"curl -sS $OPENAI_BASE_URL/batches {POST_JSON}{quoted(wish)}")).get("id")
    if not batch_id:
        return ["batch: it should be taken"]
    return await _until_done(shell, str(batch_id)) + await _webhook(shell, str(batch_id), receiver)


def batch_lines(model: str) -> list[str]:
    """The lines of the batch's file."""
    return [
        json.dumps(
            {
                "custom_id": f"line-{number}",
                "method": "POST",
                "url": "/v1/chat/completions",
                "body": {"model": model, **chat(question, 12)},
            }
        )
        for number, question in enumerate(QUESTIONS, start=1)
    ]


async def _until_done(shell: Shell, batch_id: str) -> list[str]:
    look = f"curl -sS $OPENAI_BASE_URL/batches/{batch_id} {AUTHORISED}"
    give_up = time.monotonic() + BATCH_TIMEOUT_S
    said = ""
    while True:
        batch = parsed(await shell.quietly(["/bin/sh", "-c", look]))
        counts = batch.get("request_counts") or {}
        now = f"{batch.get('status')}: {counts.get('completed', 0)} of {len(QUESTIONS)}"
        if now != said:
            said = now
            shell.say(now, "dim")
        if batch.get("status") in ENDED or time.monotonic() > give_up:
            break
        await asyncio.sleep(0.5)
    if batch.get("status") != "completed":
        return [f"batch: {batch_id} should be completed, and is {batch.get('status')}"]
    output = await shell.run(
        f"curl -sS $OPENAI_BASE_URL/files/{batch['output_file_id']}/content {AUTHORISED}",
        shown=lambda line: shell.short(_in_short(line)),
    )
    return output_problems(output)


def output_problems(output: str) -> list[str]:
    """Problems of the output file, one line each: it must hold each `custom_id` once, with an answer."""
    found = [parsed(line) for line in output.split("\n") if line]
    times = Counter(str(line.get("custom_id")) for line in found)
    wanted = Counter(f"line-{number}" for number in range(1, len(QUESTIONS) + 1))
    problems = []
    if times != wanted:
        problems.append(f"batch: the output file should have each custom_id once, not {dict(times)}")
    if any((line.get("response") or {}).get("status_code") != 200 for line in found):
        problems.append("batch: each line of the output file should have status_code 200")
    return problems


def _in_short(line: str) -> str:
    answer = parsed(line)
    try:
        text = answer["response"]["body"]["choices"][0]["message"]["content"]
    except (KeyError, IndexError, TypeError):
        return line
    return f'{{"custom_id": "{answer.get("custom_id")}", … "content": {json.dumps(text, ensure_ascii=False)} …}}'


async def _webhook(shell: Shell, batch_id: str, receiver: Receiver) -> list[str]:
    came = await receiver.about(batch_id, WEBHOOK_TIMEOUT_S)
    if came is None:
        return [f"webhook: none came about {batch_id} within {WEBHOOK_TIMEOUT_S:.0f} s"]
    shell.say(f"\nA webhook came to {receiver.url}: {came.id}", "bold")
    shell.say(shell.short(came.body.decode(errors="replace")))
    if not came.verified:
        return [f"webhook: the signature of {came.id} should be right"]
    shell.say("→ its signature is right")
    return []
