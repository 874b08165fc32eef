"""Clients that are commands: lm-eval, vLLM's benchmark, GuideLLM, aider, curl; and a reader that knows `data:` alone.

The first argument says which: each has an environment of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path
from typing import Any

from calls import FOLDER, KEY, LIMIT, MODEL, SAY, URL, call, run

WITHIN_S, ROOT = 240, str(Path(__file__).parents[3])
TASK = """
task: local
dataset_path: json
dataset_kwargs: {data_files: {test: DATA}}
test_split: test
output_type: OUTPUT
doc_to_text: "{{question}}"
doc_to_target: TARGET
doc_to_choice: ["Paris", "a cat"]
metric_list: [{metric: METRIC}]
generation_kwargs: {max_gen_toks: 8, until: ["."]}
"""
ROWS = [{"question": f"{number}. The capital of France is", "gold": 0, "text": "Paris"} for number in range(6)]
family = sys.argv.pop(1)


def ended(*command: str, folder: str | None = None, **environment: str) -> str:
    """Everything that a program of this environment prints; raises with its last lines if it fails."""
    program = Path(sys.executable).parent / command[0]  # of this environment, or on PATH
    done = subprocess.run(
        [str(program) if program.exists() else command[0], *command[1:]],
        env=os.environ | {"OPENAI_API_KEY": KEY} | environment,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )
    print(done.stdout[-4000:], done.stderr[-4000:], file=sys.stderr)
    assert done.returncode == 0, done.stderr[-400:] or done.stdout[-400:]
    return done.stdout + done.stderr


def evaluated(model: str, path: str, output: str, target: str, metric: str, *more: str) -> dict[str, Any]:
    """Results of lm-eval on a task of its own."""
    with tempfile.TemporaryDirectory() as folder:
        data, task = Path(folder) / "data.jsonl", Path(folder) / "local.yaml"
        data.write_text("\n".join(map(json.dumps, ROWS)))
        words = {"DATA": str(data), "OUTPUT": output, "TARGET": target, "METRIC": metric}
        text = TASK
        for word, value in words.items():
            text = text.replace(word, value)
        task.write_text(
            text if output == "multiple_choice" else text.replace('doc_to_choice: ["Paris", "a cat"]\n', "")
        )
        arguments = f"model={MODEL},base_url={URL}/{path},tokenizer={FOLDER},tokenizer_backend=huggingface"
        command = ("lm_eval", "run", "--model", model, "--model_args", arguments, "--tasks", "local")
        ended(*command, "--include_path", folder, "--output_path", f"{folder}/out", *more)
        (found,) = Path(folder).glob("out/**/results*.json")
        return dict(json.loads(found.read_text())["results"]["local"])


def loglikelihood() -> Any:
    return "acc,none" in evaluated("local-completions", "completions", "multiple_choice", "gold", "acc")


def generation() -> Any:
    found = evaluated("local-completions", "completions", "generate_until", "text", "exact_match")
    return "exact_match,none" in found


def generation_by_chat() -> Any:
    more = ("--apply_chat_template",)
    found = evaluated("local-chat-completions", "chat/completions", "generate_until", "text", "exact_match", *more)
    return "exact_match,none" in found


def benchmark(backend: str, path: str) -> Any:
    size = "--dataset-name random --random-input-len 16 --random-output-len 8 --num-prompts 8"
    where = f"--backend {backend} --base-url {URL.removesuffix('/v1')} --endpoint {path} --model {MODEL}"
    said = ended(
        sys.executable,
        "-m",
        "bench.engine.vllm_command",
        "bench",
        "serve",
        *where.split(),
        "--tokenizer",
        FOLDER,
        *size.split(),
        PYTHONPATH=ROOT,
    )
    counts = {line.split(":")[0]: line.split()[-1] for line in said.splitlines() if "requests:" in line}
    assert counts["Successful requests"] == "8", counts
    return counts


def serve_chat() -> Any:
    return benchmark("openai-chat", "/v1/chat/completions")


def serve_completions() -> Any:
    return benchmark("openai", "/v1/completions")


def run_of_six() -> Any:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "found.json"
        options = {
            "backend": f"kind=openai_http,target={URL.removesuffix('/v1')},model={MODEL},api_key={KEY}",
            "tokenizer": f"kind=huggingface_auto,model={FOLDER}",
            "data": "kind=synthetic_text,prompt_tokens=16,output_tokens=8",
            "profile": "kind=synchronous",
            "constraint": "kind=max_requests,count=6",
            "output": f"kind=json,path={file}",
        }
        ended("guidellm", "run", *(word for name, value in options.items() for word in (f"--{name}", value)))
        (found,) = json.loads(file.read_text())["benchmarks"]
        totals = found["metrics"]["request_totals"]
        assert totals["successful"] == 6, totals
        return totals


def message() -> Any:
    with tempfile.TemporaryDirectory() as folder:
        plain = "--no-git --no-auto-commits --yes-always --no-check-update --no-show-model-warnings --no-analytics"
        where = ["--openai-api-base", URL, "--openai-api-key", KEY, "--model", f"openai/{MODEL}"]
        said = ended("aider", *plain.split(), *where, "--chat-mode", "ask", "--message", SAY, folder=folder)
        assert "Tokens:" in said, said[-400:]
        assert "litellm." not in said, said[-400:]  # as its errors are called
        return said


def curl(path: str, body: dict[str, Any], *more: str) -> str:
    """Output of curl for a body."""
    headers = ["-H", f"Authorization: Bearer {KEY}", "-H", "Content-Type: application/json"]
    return ended(
        "curl", "--no-progress-meter", "--fail-with-body", f"{URL}/{path}", *headers, *more, "-d", json.dumps(body)
    )


ASKED = {"model": MODEL, "messages": [{"role": "user", "content": SAY}], "max_tokens": LIMIT}


def chat() -> Any:
    return json.loads(curl("chat/completions", ASKED))["choices"][0]["message"]["content"]


def chat_streamed() -> Any:
    return curl("chat/completions", ASKED | {"stream": True}, "-N").rstrip().endswith("data: [DONE]")


def every_line_is_data() -> Any:
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
    body = json.dumps(ASKED | {"stream": True}).encode()
    request = urllib.request.Request(f"{URL}/chat/completions", body, headers)  # noqa: S310
    with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
        lines = [line.decode().rstrip("\r\n") for line in answer]
    *chunks, done = [line.removeprefix("data: ") for line in lines if line]
    assert all(line.startswith("data: ") for line in lines if line), lines
    assert done == "[DONE]"
    return all(json.loads(chunk)["choices"] for chunk in chunks)


for each in {
    "lm-eval": (loglikelihood, generation, generation_by_chat),
    "vllm": (serve_chat, serve_completions),
    "guidellm": (run_of_six,),
    "aider": (message,),
    "curl": (chat, chat_streamed),
    "sse": (every_line_is_data,),
}[family]:
    call(each)
run()
