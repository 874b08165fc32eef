"""Prefix cache of the simulated engine: blocks of tokens, each found by all the text up to its end, as in vLLM. Pure.

Texts are added as they are read and written; a prompt that begins like one of them has these tokens for free. Blocks
that were not used for longest go first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

BLOCK_TOKENS = 16
_BLOCK_BYTES = 4 * BLOCK_TOKENS  # a token is four bytes, as in `simulated_api.count_tokens`


class PrefixCache:
    """Blocks in the order of their last use."""

    def __init__(self) -> None:
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def found(self, model: str, text: str) -> int:
        """Tokens of a prompt that are here. Never all of them: the last one has to be computed for the next."""
        blocks = 0
        for block in _blocks(model, text, less=1):
            if block not in self._blocks:
                break
            self._use(block)
            blocks += 1
        return blocks * BLOCK_TOKENS

    def add(self, model: str, text: str) -> None:
        """Add a text that the engine has read or written."""
        # From its end: the beginning, which more texts share, has to outlive the rest.
        for block in reversed([*_blocks(model, text)]):
            self._use(block)

    def shrink(self, most_tokens: int) -> None:
        """Drop what exceeds so many tokens."""
        while len(self._blocks) > max(0, most_tokens // BLOCK_TOKENS):
            self._blocks.popitem(last=False)

    def _use(self, block: int) -> None:
        self._blocks[block] = None
        self._blocks.move_to_end(block)


def _blocks(model: str, text: str, less: int = 0) -> Iterator[int]:
    """Digests of the whole blocks in all bytes of a text but the last `less`; an adapter shares none with others."""
    raw, digest = text.encode("utf-8", "surrogatepass"), hash(model)
    for end in range(_BLOCK_BYTES, len(raw) - less + 1, _BLOCK_BYTES):
        digest = hash((digest, raw[end - _BLOCK_BYTES : end]))
        yield digest
