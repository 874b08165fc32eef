"""A vLLM executor without a model: simulated steps that last as long as those of a GPU.

The engine core's process, its scheduler and its sockets are vLLM's own. vLLM takes the executor by its import path, as
``--distributed-executor-backend``. Each scheduled request gets the next token of one text.
"""

from __future__ import annotations

import os
import time
from concurrent.futures import Future
from typing import Any

import torch
from transformers import AutoTokenizer
from vllm.v1.executor.abstract import Executor
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.outputs import ModelRunnerOutput

from bench.front_end import PACE_VARIABLE

H100 = "6500,22200,22200"
"""Llama 3 8B's shape on an H100: fits the figures of bare AsyncLLM in docs/gpu.md."""
TEXT = (
    "The river carried a silver lamp past the old stone bridge, and in the winter market a letter lay beneath the "
    "copper window; the orchard, the harbour and the village heard a distant signal. "
)


class StubExecutor(Executor):  # type: ignore[misc]
    """Executes nothing; see the module."""

    def _init_executor(self) -> None:
        tokenizer = AutoTokenizer.from_pretrained(self.model_config.model)
        self._text: list[int] = tokenizer.encode(TEXT, add_special_tokens=False)
        base_us, prompt_ns, sequence_ns = map(float, os.environ.get(PACE_VARIABLE, H100).split(","))
        self._base_s, self._prompt_s, self._sequence_s = base_us * 1e-6, prompt_ns * 1e-9, sequence_ns * 1e-9
        self._written: dict[str, int] = {}
        self._output: ModelRunnerOutput | None = None

    def collective_rpc(self, method: Any, *_: Any, non_block: bool = False, **__: Any) -> Any:
        layer = FullAttentionSpec(
            block_size=self.cache_config.block_size or 16, num_kv_heads=1, head_size=64, dtype=torch.bfloat16
        )
        answers = {
            "get_supported_tasks": ("generate",),
            "supports_draft_weight_updates": False,
            "get_supported_kv_cache_layouts": ["NHD"],
            "get_kv_cache_spec": {"layer.0": layer},
            "determine_available_memory": 4 << 30,
        }
        return _answered([answers.get(method)], non_block)

    def set_kv_cache_layout(self, layout_name: str) -> None:
        from vllm.v1.attention.backends.utils import record_kv_cache_layout

        record_kv_cache_layout(self.cache_config, layout_name)

    def _nothing(self, *_: Any) -> None:
        """There is no model."""

    initialize_from_config = compile_or_warm_up_model = check_health = shutdown = _nothing

    def execute_model(self, scheduler_output: Any, non_block: bool = False) -> Any:
        began = time.perf_counter()
        scheduled: dict[str, int] = scheduler_output.num_scheduled_tokens
        prompts = 0
        for new in scheduler_output.scheduled_new_reqs:
            self._written[new.req_id] = 0
            prompts += scheduled[new.req_id]
        tokens = []
        for name in scheduled:
            at = self._written.get(name, 0)
            self._written[name] = at + 1
            tokens.append([self._text[at % len(self._text)]])
        for name in scheduler_output.finished_req_ids:
            self._written.pop(name, None)
        index = {name: number for number, name in enumerate(scheduled)}
        self._output = ModelRunnerOutput(req_ids=list(scheduled), req_id_to_index=index, sampled_token_ids=tokens)
        if scheduled:
            step_s = self._base_s + self._prompt_s * prompts + self._sequence_s * len(scheduled)
            time.sleep(max(0.0, step_s - (time.perf_counter() - began)))
        return _answered(None, non_block)

    def sample_tokens(self, grammar_output: Any, non_block: bool = False) -> Any:  # noqa: ARG002 - vLLM's signature
        return _answered(self._output, non_block)


def _answered(value: Any, non_block: bool) -> Any:
    """The value, as vLLM expects it of a call that may block or may not."""
    if not non_block:
        return value
    future: Future[Any] = Future()
    future.set_result(value)
    return future
