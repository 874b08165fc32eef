"""Converts a GGUF file of a Llama model with a byte-level BPE tokenizer into the files of a Hugging Face folder."""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf.quants import dequantize
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

Fields = Mapping[str, Any]

CONTROL_TOKEN = 3
"""GGUF's token type of markers such as `<|im_end|>`."""

BFLOAT16_BYTES = 2

_TOP_LEVEL = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_IN_BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


@dataclass(frozen=True)
class LlamaShape:
    """Sizes that determine the weights' layout."""

    heads: int
    kv_heads: int
    hidden: int

    @classmethod
    def from_gguf(cls, fields: Fields) -> LlamaShape:
        """Read the shape from the file's header. Raises ValueError if the file holds no Llama model."""
        if fields["general.architecture"] != "llama":
            raise ValueError(f"general.architecture: expected llama, got {fields['general.architecture']}")
        return cls(
            heads=int(fields["llama.attention.head_count"]),
            kv_heads=int(fields["llama.attention.head_count_kv"]),
            hidden=int(fields["llama.embedding_length"]),
        )


def _hugging_face_name(name: str) -> str:
    """Hugging Face's name of a tensor: `model.layers.3.self_attn.q_proj.weight` for `blk.3.attn_q.weight`."""
    if match := re.fullmatch(r"blk\.(\d+)\.(\w+)\.(\w+)", name):
        return f"model.layers.{match[1]}.{_IN_BLOCK[match[2]]}.{match[3]}"
    stem, suffix = name.rsplit(".", 1)
    return f"{_TOP_LEVEL[stem]}.{suffix}"


def write_weights(tensors: Sequence[Any], shape: LlamaShape, path: Path) -> None:
    """Write all weights as bfloat16; that loses no precision, because the source has 4 to 8 bits.

    Writes the safetensors format directly: the length of a JSON header, the header, then one tensor after the other.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for tensor in tensors:
        # GGUF names the fastest dimension first.
        dimensions = [int(size) for size in reversed(tensor.shape)]
        end = offset + BFLOAT16_BYTES * math.prod(dimensions)
        header[_hugging_face_name(tensor.name)] = {
            "dtype": "BF16",
            "shape": dimensions,
            "data_offsets": [offset, end],
        }
        offset = end
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    with path.open("wb") as out:
        out.write(struct.pack("<Q", len(head)) + head)
        for tensor in tensors:
            out.write(_bfloat16_bytes(_values(tensor, shape)))


def _values(tensor: Any, shape: LlamaShape) -> np.ndarray[Any, Any]:
    values: np.ndarray[Any, Any] = dequantize(tensor.data, tensor.tensor_type)
    if tensor.name.endswith("attn_q.weight"):
        return _halves_together(values, shape.heads)
    if tensor.name.endswith("attn_k.weight"):
        return _halves_together(values, shape.kv_heads)
    return values


def _halves_together(values: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """Reorder rotary dimensions: GGUF stores the two of a pair side by side, Hugging Face all first ones together."""
    rows, columns = values.shape
    return values.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def _bfloat16_bytes(values: np.ndarray[Any, Any]) -> bytes:
    """The upper half of each float32, rounded to nearest, ties to even; numpy has no bfloat16."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    upper: bytes = rounded.astype("<u2").tobytes()
    return upper


def write_tokenizer(fields: Fields, folder: Path) -> None:
    """Write `tokenizer.json` and `tokenizer_config.json`, with the chat template."""
    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ", 1)) for merge in fields["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    kinds = fields["tokenizer.ggml.token_type"]
    tokenizer.add_special_tokens(
        [
            AddedToken(token, special=True, normalized=False)
            for token, kind in zip(tokens, kinds, strict=True)
            if kind == CONTROL_TOKEN
        ]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    config = _tokenizer_config(fields, tokens)
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def _tokenizer_config(fields: Fields, tokens: list[str]) -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokens[fields["tokenizer.ggml.bos_token_id"]],
        "eos_token": tokens[fields["tokenizer.ggml.eos_token_id"]],
        "unk_token": tokens[fields["tokenizer.ggml.unknown_token_id"]],
        "pad_token": tokens[fields["tokenizer.ggml.padding_token_id"]],
        "model_max_length": fields["llama.context_length"],
        "clean_up_tokenization_spaces": False,
        "chat_template": fields["tokenizer.chat_template"],
    }


def model_config(fields: Fields, shape: LlamaShape) -> dict[str, Any]:
    """The content of `config.json`."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": fields["llama.vocab_size"],
        "hidden_size": shape.hidden,
        "intermediate_size": fields["llama.feed_forward_length"],
        "num_hidden_layers": fields["llama.block_count"],
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "max_position_embeddings": fields["llama.context_length"],
        "rms_norm_eps": round(fields["llama.attention.layer_norm_rms_epsilon"], 12),
        "rope_theta": fields["llama.rope.freq_base"],
        "rope_parameters": {"rope_type": "default", "rope_theta": fields["llama.rope.freq_base"]},
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        # The file has no output matrix of its own.
        "tie_word_embeddings": True,
        "dtype": "bfloat16",
        "torch_dtype": "bfloat16",
        **generation_config(fields),
    }


def generation_config(fields: Fields) -> dict[str, int]:
    """The content of `generation_config.json`."""
    return {
        "bos_token_id": fields["tokenizer.ggml.bos_token_id"],
        "eos_token_id": fields["tokenizer.ggml.eos_token_id"],
        "pad_token_id": fields["tokenizer.ggml.padding_token_id"],
    }
