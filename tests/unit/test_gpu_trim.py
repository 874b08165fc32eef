"""Libraries for one GPU: the code of others is zeroed, everything else stays."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from bench.gpu.trim import MAGIC, trim

PTX, MACHINE_CODE = 1, 2


def entry(kind: int, architecture: int, code: bytes, *, header: int = 64) -> bytes:
    """An entry of a fat binary."""
    head = struct.pack("<HHIQ12xI", kind, 0x101, header, len(code), architecture)
    return head.ljust(header, b"\x11") + code


def fat_binary(*entries: bytes) -> bytes:
    """A fat binary."""
    return MAGIC + struct.pack("<HHQ", 1, 16, len(b"".join(entries))) + b"".join(entries)


def library(folder: Path, *parts: bytes) -> Path:
    """A library of these parts."""
    path = folder / "library.so"
    path.write_bytes(b"".join(parts))
    return path


def test_only_machine_code_of_the_architecture_is_left(tmp_path: Path) -> None:
    def parts(*, other: bytes, ptx: bytes) -> list[bytes]:
        return [
            b"\x7fELF" + MAGIC + struct.pack("<HHQ", 9, 16, 67) + entry(MACHINE_CODE, 80, b"no!"),
            fat_binary(entry(MACHINE_CODE, 80, other), entry(MACHINE_CODE, 90, b"hopper" * 4, header=112)),
            b"between",
            fat_binary(entry(PTX, 90, ptx, header=80), entry(MACHINE_CODE, 90, MAGIC + b"code"), entry(PTX, 80, b"")),
            b"the end" + MAGIC,
        ]

    path = library(tmp_path, *parts(other=b"ampere", ptx=b".version 8"))
    assert trim(path, 90) == (32, 16)
    assert path.read_bytes() == b"".join(parts(other=bytes(6), ptx=bytes(10)))


def test_unknown_layout_is_refused_before_anything_is_changed(tmp_path: Path) -> None:
    long = struct.pack("<HHIQ12xI", MACHINE_CODE, 0x101, 64, 1 << 20, 80).ljust(64, b"\x11")
    path = library(tmp_path, fat_binary(entry(MACHINE_CODE, 80, b"ampere"), long))
    before = path.read_bytes()
    with pytest.raises(ValueError, match="goes beyond its end"):
        trim(path, 90)
    assert path.read_bytes() == before
