"""Store of file contents: a folder or an object store, by any URL that fsspec knows.

A content is written once, under a new random name, and never changed. So readers need no lock, and an incomplete
content is only garbage, whose name `FileBroker.loose` returns.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import fsspec
import structlog
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.registry import known_implementations

from streamfleet.common.errors import SettingsError, StreamfleetError
from streamfleet.gateway import metrics

log = structlog.get_logger(__name__)
P = ParamSpec("P")
T = TypeVar("T")
BLOCK_BYTES = 262_144
PART_BYTES = 5_242_880
"""Bytes sent to an object store at once: the fewest that S3 takes, because each content in progress holds so many in
memory."""
THREADS = 8


class StoreUnavailable(StreamfleetError):
    """The store of contents failed; the message names no path."""

    retryable = True


class ContentGone(StreamfleetError):
    """A content is not in the store: it was deleted by hand, or the store's URL was changed."""


class Store:
    """Contents of files, by name.

    Args:
        url: URL of a folder.

    Raises:
        SettingsError: fsspec does not know the URL, or a package for it is missing.
    """

    def __init__(self, url: str) -> None:
        try:
            self._files, root = fsspec.core.url_to_fs(_expand_user(url))
        except ImportError as error:
            raise SettingsError(f"STREAMFLEET_GATEWAY_FILES: {url}: {_install_hint(url, error)}") from None
        except (ValueError, RuntimeError) as error:  # RuntimeError: the home of a ~ is unknown
            raise SettingsError(f"STREAMFLEET_GATEWAY_FILES: {url}: {error}") from None
        self._root = str(root).rstrip("/")
        self._threads = ThreadPoolExecutor(THREADS, "files")

    @property
    def shared(self) -> bool:
        """True if other machines may reach the store; a local folder counts as not shared, even if it is a mount."""
        return not isinstance(self._files, (LocalFileSystem, MemoryFileSystem))

    def new_name(self, owner: str) -> str:
        """Returns a new name for a content of this file."""
        chance = secrets.token_hex(8)
        return f"{chance[:2]}/{owner}.{chance[2:]}"

    async def write(self, name: str) -> Writer:
        """Begin a content. Raises StoreUnavailable."""
        path = self._path(name)
        return Writer(await self._run_on_thread(_open_for_writing, self._files, path), self._run_on_thread)

    async def put(self, name: str, data: bytes) -> None:
        """Store a whole content. Raises StoreUnavailable."""
        writer = await self.write(name)
        await writer.write(data)
        await writer.close()

    async def read(self, name: str) -> AsyncGenerator[bytes, None]:
        """Yields a content, in blocks.

        Raises:
            ContentGone: the content does not exist.
            StoreUnavailable: the store failed.
        """
        file = await self._run_on_thread(self._files.open, self._path(name), "rb", block_size=BLOCK_BYTES * 4)
        try:
            while block := await self._run_on_thread(file.read, BLOCK_BYTES):
                yield block
        finally:
            await self._run_on_thread(file.close)

    async def check(self, names: list[str]) -> None:
        """Check that contents exist. Raises ContentGone, StoreUnavailable."""
        await self._run_on_thread(self._files.sizes, [self._path(name) for name in names])

    async def delete(self, name: str) -> None:
        """Delete a content, if it exists. Raises StoreUnavailable."""
        with contextlib.suppress(ContentGone):  # a name outside of the store
            await self._run_on_thread(_remove, self._files, self._path(name))

    async def close(self) -> None:
        """Stop the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _path(self, name: str) -> str:
        if ".." in name or name.startswith("/"):
            raise ContentGone("a file names a content outside the store")
        return f"{self._root}/{name}"

    async def _run_on_thread(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._threads, lambda: work(*args, **kwargs))
        except FileNotFoundError as error:
            log.warning("content_gone", error=str(error))
            metrics.STORE_FAULTS.labels(metrics.STORE_GONE).inc()
            raise ContentGone("the content of the file is not in the store any more") from None
        except Exception as error:
            # Each kind of store raises other errors.
            metrics.STORE_FAULTS.labels(metrics.STORE_FAILED).inc()
            log.warning("file_store_failed", error=f"{type(error).__name__}: {error}")
            raise StoreUnavailable("the store of file contents cannot be reached, or is full; try again") from error


class Writer:
    """A content that is being written."""

    def __init__(self, file: Any, do: Callable[..., Any]) -> None:
        self._file, self._run_on_thread = file, do

    async def write(self, data: bytes | memoryview) -> None:
        """Append data."""
        await self._run_on_thread(self._file.write, data)

    async def close(self) -> None:
        """Complete the content. After this it survives a crash; in a local folder, also a power failure."""
        try:
            await self._run_on_thread(_sync_and_close, self._file)
        except ContentGone:  # the bucket or folder does not exist
            raise StoreUnavailable(
                "the store of file contents is not there; whoever runs the gateway has to look"
            ) from None

    async def abort(self) -> None:
        """Stop writing. The caller deletes what was written, by its name."""
        await self._run_on_thread(self._file.close)


def _expand_user(url: str) -> str:
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{Path(rest).expanduser()}" if scheme in ("file", "local") and rest.startswith("~") else url


def _install_hint(url: str, error: ImportError) -> str:
    """Returns the name of the package that a URL needs, and the command that installs it."""
    scheme = url.partition("://")[0]
    package = str(known_implementations.get(scheme, {}).get("class", "")).partition(".")[0]
    if package == "s3fs":
        return f"{scheme}:// needs s3fs, which is not installed: pip install '.[s3]' in a clone; the image has it"
    if package not in ("", "fsspec"):
        return f"{scheme}:// needs {package}, which is not installed: pip install {package}"
    return f"{scheme}:// needs a package that is not installed: {error}"


def _remove(files: Any, path: str) -> None:
    with contextlib.suppress(FileNotFoundError):  # another gateway swept it at the same time: no error to report
        files.rm_file(path)


def _open_for_writing(files: Any, path: str) -> Any:
    if isinstance(files, LocalFileSystem):
        # Other stores create folders by themselves, or have none.
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        return Path(path).open("xb")
    return files.open(path, "wb", block_size=PART_BYTES)


def _sync_and_close(file: Any) -> None:
    if hasattr(file, "fileno") and not isinstance(file, fsspec.spec.AbstractBufferedFile):
        try:
            number = file.fileno()
        except OSError:  # in memory, without a file number
            number = None
        if number is not None:
            file.flush()
            os.fsync(number)
    file.close()
