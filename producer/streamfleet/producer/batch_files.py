"""The files that a batch writes, so that it can be stopped at any instant and continued later."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import gzip
import json
import os
import secrets
import shutil
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Self, cast

from streamfleet.common.errors import InvalidRequest, StreamfleetError
from streamfleet.common.protocol import check_name
from streamfleet.producer.batch_lines import LINE_BEGINS, MAX_LINE_BYTES, Written, parse_written

STANDARD = Path("-")
"""Name of stdin as an input, and of stdout as an output."""
_NO_LOCKS = frozenset({errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP})
"""Errors of file systems without locks: some network file systems, and some in user space."""


class BatchFileError(StreamfleetError):
    """A file cannot be used for this batch; the message names the file and the remedy."""


def default_error_file(output: Path) -> Path:
    """Default error file of an output file: ``out.errors.jsonl`` for ``out.jsonl``, and so for ``out.jsonl.gz``."""
    zipped = output.suffix if output.suffix == ".gz" else ""
    plain = output.with_suffix("") if zipped else output
    return plain.with_suffix(f".errors{plain.suffix}{zipped}")


def readable_twice(source: Path, folder: Path) -> Path:
    """The input as a file: itself; or a copy of stdin, or of a pipe, in a folder."""
    if source != STANDARD and source.is_file():
        return source
    copy = folder / source.name
    stdin = contextlib.nullcontext(sys.stdin.buffer)
    with stdin if source == STANDARD else source.open("rb") as pipe, copy.open("wb") as file:
        shutil.copyfileobj(pipe, file)
    return copy


def open_input(path: Path) -> IO[bytes]:
    """Open an input; one that ends in ``.gz`` is read through gzip."""
    return cast("IO[bytes]", gzip.open(path)) if path.suffix == ".gz" else path.open("rb")


def count_lines(path: Path) -> int:
    """Number of lines of an input that are not blank."""
    with open_input(path) as file:
        return sum(1 for line in lines_of(file) if not line.isspace())


def has_lines(path: Path) -> bool:
    """True if an input has a line that is not blank."""
    with open_input(path) as file:
        return any(not line.isspace() for line in lines_of(file))


def lines_of(file: IO[bytes], most: int = MAX_LINE_BYTES) -> Iterator[bytes]:
    """Lines of a file; a line longer than `most` bytes is cut after `most` + 1, so that it cannot fill the memory.

    Raises:
        BatchFileError: it is a gzip file that is damaged or cut short.
    """
    try:
        while line := file.readline(most + 1):
            rest = line
            while rest and not rest.endswith(b"\n"):
                rest = file.readline(65_536)
            yield line
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise BatchFileError(f"{file.name} is a damaged gzip file: {error}") from None


class AppendFile:
    """A file of finished lines. Created at the first line; a half-written line of a killed run is cut off on opening.

    Args:
        path: the file.
        stream: where lines go in place of it, such as stdout; nothing is known of earlier runs then.

    Raises:
        BatchFileError: it holds lines that no batch wrote.
    """

    def __init__(self, path: Path, stream: IO[bytes] | None = None) -> None:
        self.path = path
        self._file = self._stream = stream

    def written(self) -> Iterator[Written]:
        """Lines that earlier runs wrote. Call this before `add`."""
        if self._stream is not None or not self.path.exists():
            return
        end = 0
        with self.path.open("rb+") as lines:
            for number, line in enumerate(lines, 1):
                about = parse_written(line)
                if not line.endswith(b"\n"):
                    if about is None and not _half_of_ours(line):
                        raise self._not_ours(number)
                    if about is None:
                        break  # the whole answer is still in Redis
                    lines.seek(0, os.SEEK_END)
                    lines.write(b"\n")
                    yield about
                    return
                end += len(line)
                if about is not None:
                    yield about
                elif not line.isspace():
                    raise self._not_ours(number)
            lines.truncate(end)

    def _not_ours(self, number: int) -> BatchFileError:
        return BatchFileError(
            f"{self.path}, line {number}, was not written by a batch: name another file, or remove this one"
        )

    def add(self, line: bytes) -> None:
        """Write one whole line, newline included."""
        if self._file is None:
            self._file = self.path.open("ab")
        self._file.write(line)

    def flush(self) -> None:
        """Pass buffered lines to the operating system."""
        if self._file is not None:
            self._file.flush()

    def close(self) -> None:
        self.flush()
        if self._file is not None and self._stream is None:
            os.fsync(self._file.fileno())
            self._file.close()
            self._file = None


class GzipAppendFile(AppendFile):
    """As `AppendFile`, compressed: each flush adds a whole gzip member, so a killed run leaves at most half of one."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._lines: list[bytes] = []

    def written(self) -> Iterator[Written]:
        """Lines that earlier runs wrote. Call this before `add`."""
        if not self.path.exists():
            return
        self._cut()
        line = b"\n"
        with gzip.open(self.path) as lines:
            for number, line in enumerate(lines, 1):
                about = parse_written(line)
                if about is not None:
                    yield about
                elif not line.isspace():
                    raise self._not_ours(number)
        if not line.endswith(b"\n"):
            self._lines.append(b"\n")

    def _cut(self) -> None:
        """Cut off what a killed run left behind the last whole member."""
        whole = at = 0
        member, block = zlib.decompressobj(31), b""
        with self.path.open("rb+") as file:
            try:
                while block := block or file.read(65_536):
                    if at == whole and not block.strip(b"\0"):
                        break  # zeros of a power failure
                    member.decompress(block)
                    at += len(block) - len(member.unused_data)
                    block = member.unused_data
                    if member.eof:
                        whole, member = at, zlib.decompressobj(31)
            except zlib.error as error:
                said = f"{self.path} is no gzip file from byte {whole} on ({error}): cut it there, or name another file"
                raise BatchFileError(said) from None
            file.truncate(whole)

    def add(self, line: bytes) -> None:
        """Keep one whole line, newline included, for the next flush."""
        self._lines.append(line)

    def flush(self) -> None:
        """Pass the lines to the operating system, compressed."""
        if self._lines:
            super().add(gzip.compress(b"".join(self._lines), 6, mtime=0))
            self._lines.clear()
        super().flush()


def append_file(path: Path) -> AppendFile:
    """The file of finished lines of this name: compressed if it ends in ``.gz``; stdout for ``-``."""
    if path == STANDARD:
        return AppendFile(Path("stdout"), sys.stdout.buffer)
    return (GzipAppendFile if path.suffix == ".gz" else AppendFile)(path)


def _half_of_ours(line: bytes) -> bool:
    """True if a killed run or a power failure (zeros) may have left this line; False for a foreign line."""
    return line.startswith(LINE_BEGINS) or LINE_BEGINS.startswith(line) or not line.strip(b"\x00 \t\r")


class Job:
    """Connects runs that write the same output: ``<OUT>.partial`` holds the prefix of their request ids.

    The file exists while the batch is unfinished, and is locked while a run uses it. A finished batch removes it: lines
    that are deleted from the output afterwards, to try them again, get new requests.

    Attributes:
        path, name: the file, and the prefix in it.
        unlocked: why the file is not locked: its file system has no locks. Empty if it is locked.

    Raises:
        BatchFileError: on entering, if another run holds the lock, or the file cannot be used.
    """

    def __init__(self, output: Path) -> None:
        self.path = output.with_name(f"{output.name}.partial")
        self.name = self.unlocked = ""
        self._file: IO[str] | None = None

    def __enter__(self) -> Self:
        file = self.path.open("a+", encoding="utf-8", errors="replace")
        try:
            self.unlocked = _lock(file)
            self.name = self._read(file) or self._start(file)
        except BlockingIOError:
            file.close()
            raise BatchFileError(f"another run writes the same output (it holds {self.path})") from None
        except OSError as error:
            self._give_up(file)
            raise BatchFileError(f"{self.path} cannot be used: {error.strerror}") from None
        except BaseException:
            file.close()
            raise
        self._file = file
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def finish(self) -> None:
        """Remove the file, because the batch is finished."""
        self.path.unlink(missing_ok=True)

    def _give_up(self, file: IO[str]) -> None:
        """Close the file, and remove it unless it holds the prefix of a job."""
        with contextlib.suppress(OSError):  # what could not be written cannot be written now
            file.close()
        with contextlib.suppress(OSError):
            if b"\n" not in self.path.read_bytes():
                self.path.unlink()

    def _read(self, file: IO[str]) -> str:
        file.seek(0)
        text = file.read()
        if not text.endswith("\n"):
            return ""
        try:
            return check_name(json.loads(text)["job"], "job")
        except (ValueError, KeyError, TypeError, RecursionError, InvalidRequest):
            said = f"{self.path} was not written by a batch: remove it, or name another output"
            raise BatchFileError(said) from None

    def _start(self, file: IO[str]) -> str:
        name = f"batch-{secrets.token_hex(6)}"
        file.truncate(0)
        # On disk before the first request is sent; otherwise a restarted run would enqueue all requests a second time.
        try:
            file.write(json.dumps({"job": name, "note": "unfinished; the same command goes on with it"}) + "\n")
            file.flush()
            os.fsync(file.fileno())
        except OSError:
            self.path.unlink()
            raise
        return name


def _lock(file: IO[str]) -> str:
    """Lock a file for this run. Returns why it is not locked if its file system has no locks, else an empty text."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        return error.strerror or str(error)
    return ""
