"""Tables of the command line on terminals of any width, with names and messages as long as real ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from io import StringIO

import pytest
from rich.cells import cell_len
from rich.console import Console, RenderableType

from streamfleet.cli import webhooks_view
from streamfleet.cli.gateway_command import keys_table
from streamfleet.common.protocol import LANES, Lane
from streamfleet.gateway.api_keys import KeyRecord
from streamfleet.gateway.webhook_messages import DeadWebhook, Message
from streamfleet.operator.broker.audit import Audit, LaneAudit, Ranked, Sample
from streamfleet.operator.commands import backlog_view, dead_view, workers_view
from streamfleet.operator.dead_letters import DeadLetter
from streamfleet.operator.fleet import WorkerView, worker_views
from streamfleet.operator.plan import view as plan_view
from streamfleet.operator.plan.figures import Figures
from streamfleet.operator.plan.profile import EngineProfile
from streamfleet.operator.plan.size import Sized
from streamfleet.operator.rates import Rates
from streamfleet.operator.snapshot import Snapshot, lane_views
from streamfleet.worker.engine.simulated_profile import SMOLLM2_135M_CPU

NOW_MS = 1_790_000_000_000
CREATED_MS = NOW_MS - 273_600_000
LETTER_ID = "1789999000000-12"
REQUEST_ID = "5f0c9a7e41b8d2630f9e7c1a2b3d4e5f60718293"
MESSAGE = "The model `Qwen/Qwen2.5-72B-Instruct-GPTQ-Int4` does not exist: this worker serves Qwen/Qwen2.5-7B-Instruct"
POD = "streamfleet-worker-qwen-7b-6f9c8d7b5d-x2x7k-1a2b3c4d"
WORKER = {
    "state": "ready",
    "engine": "vllm",
    "models": ["Qwen/Qwen2.5-7B-Instruct", "meta-llama/Llama-3.1-8B-Instruct"],
    "slots": 256,
    "version": "0.2.0",
    "seen_ms": NOW_MS - 12_000,
    "started_ms": CREATED_MS,
    "oldest_held_ms": NOW_MS - 190_000,
}
UNFIT = {**WORKER, "state": "unfit", "unready": "every request fails: the engine answered 500 Internal Server Error"}
HELD = {POD: {"critical": 3, "high": 12, "normal": 120, "low": 64}, "gone": {"low": 1}}


def workers() -> list[WorkerView]:
    return worker_views({POD: WORKER, f"{POD}2": UNFIT, "gone": {**WORKER, "seen_ms": NOW_MS - 60_000}}, HELD, NOW_MS)


def backlog() -> RenderableType:
    counts = LaneAudit(Lane.CRITICAL, 123_456, 120_000, 256, 12, 4, 99)
    empty = [LaneAudit(each, 0, 0, 0, 0, 0, 0) for each in list(Lane)[1:]]
    sample = Sample(
        NOW_MS,
        {},
        delayed={Lane.CRITICAL: 3_184},
        oldest_ms={Lane.CRITICAL: NOW_MS - 190_000},
        first_ms={Lane.CRITICAL: NOW_MS - 95_000},
        ranked=[Ranked(Lane.CRITICAL, 0, NOW_MS - 100_000, NOW_MS - 95_000)],
    )
    lanes = lane_views(Audit({}, 3_184, 0, 0, [counts, *empty]), sample, 300_000)
    ended = {"succeeded": 1_234_567, "failed": 12, "expired": 345, "dead": 6}
    view = Snapshot("summaries", NOW_MS, lanes, workers(), 12, 6, 1_358_000, ended)
    return backlog_view.render(view, Rates(1, 12.5, 10.0, {}, 0, 0))


def dead_letters() -> RenderableType:
    error = {"message": MESSAGE, "param": "model", "code": "model_not_found"}
    letters = [
        DeadLetter(LETTER_ID, REQUEST_ID, "cancelled", 1, error, "critical:1789999000000-3", (), False, {}),
        DeadLetter(LETTER_ID, "r-1", "dead", 12, {"message": f"first\n\n{MESSAGE}"}, "low:1-1", (), False, {}),
    ]
    return dead_view.table(letters, NOW_MS)


def dead_webhooks() -> RenderableType:
    message = Message(REQUEST_ID, "https://example.org", "chat.completion.succeeded", "team-summaries", "{}", NOW_MS)
    error = "TLS failed: hostname mismatch, certificate is not valid for 'hooks.example.org'"
    letter = DeadWebhook(LETTER_ID, message, f"msg_{REQUEST_ID}", "attempts", 12, 0, error)
    return webhooks_view.table([letter, replace(letter, message=None, error="")], NOW_MS)


def secrets() -> RenderableType:
    secret = {"tenant": "", "fingerprint": "0123456789abcdef", "created_ms": CREATED_MS, "until_ms": NOW_MS + 3_700_000}
    rows = [{**secret, "tenant": "team-summaries-of-the-night", "until_ms": None}, secret]
    return webhooks_view.secrets_table(rows, NOW_MS)


def keys() -> RenderableType:
    laptop = KeyRecord("0123456789abcdef", "the laptop of somebody", "team-summaries", LANES, 1_000, 10_000_000)
    records = [
        replace(laptop, created_ms=CREATED_MS, expires_ms=NOW_MS + 273_600_000, operator=True),
        KeyRecord("0123456789abcdef", "ci", "t", created_ms=CREATED_MS),
    ]
    return keys_table(records, NOW_MS)


def plan() -> RenderableType:
    fleets = tuple(
        Figures(workers, 3_000, late, (), 0.002, 190.0, 21.9, 3_800.0, 0.65, 1.0)
        for workers, late in ((19, 0.00907), (20, 0.0043), (21, 0.00313))
    )
    basis = "3 runs of 3000 requests at 20/s in the lane normal, 300 + 150 tokens, on Qwen/Qwen2.5-7B-Instruct, 1 H100"
    return plan_view.render(Sized(20, fleets), 0.005, 1, basis)


TABLES: dict[str, Callable[[], RenderableType]] = {
    "workers": lambda: workers_view.render(workers()),
    "backlog": backlog,
    "dead list": dead_letters,
    "plan": plan,
    "plan measure": lambda: plan_view.render_profile(EngineProfile(SMOLLM2_135M_CPU)),
    "gateway webhooks list": dead_webhooks,
    "gateway webhooks secret list": secrets,
    "gateway keys list": keys,
}
HEADINGS = {
    "workers": "worker ready engine: model version age seen running held oldest held",
    "backlog": (
        "lane outstanding ready running delayed mean wait oldest nearest worker state engine: model slots last seen"
    ),
    "dead list": "dead letter request status lane tries age reason",
    "plan": "workers late wait p50 p99 answer slots used hours a day verdict",
    "plan measure": "requests at once step ms output tokens/s",
    "gateway webhooks list": "dead letter webhook-id type reason tries age error",
    "gateway webhooks secret list": "tenant fingerprint age signs for",
    "gateway keys list": "id name tenant lanes requests/min tokens/min age expires in /ui",
}


def shown(name: str, width: int) -> str:
    written = StringIO()
    Console(file=written, width=width, color_system=None, force_terminal=True).print(TABLES[name]())
    return written.getvalue()


def characters(text: str) -> Counter[str]:
    return Counter("".join(text.replace("─", "").split()))


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
@pytest.mark.parametrize("name", TABLES)
def test_a_table_fits_and_nothing_is_cut(name: str, width: int) -> None:
    text = shown(name, width)
    lines = text.splitlines()
    assert max(map(cell_len, lines)) <= width
    assert all(line.strip() for line in lines), "a blank line"
    assert {*HEADINGS[name].split()} <= {*text.split()}, "a heading is cut"
    assert not characters(shown(name, 1_000)) - characters(text), "a cell is cut"


@pytest.mark.parametrize("name", TABLES)
def test_headings_are_above_the_rows_where_there_is_room_and_else_beside_each(name: str) -> None:
    first = HEADINGS[name].split()[0]
    assert [line.split()[0] for line in shown(name, 120).splitlines()].count(first) == 1
    assert [line.split()[0] for line in shown(name, 24).splitlines()].count(first) > 1


def test_text_where_a_word_is_expected_is_not_cut_either() -> None:
    letter = DeadLetter(LETTER_ID, "r-1", "x" * 300, 1, {"message": ""}, "low:1-1", (), False, {})
    written = StringIO()
    Console(file=written, width=80, color_system=None, force_terminal=True).print(dead_view.table([letter], NOW_MS))
    assert written.getvalue().count("x") == 300
