"""Files and batches of the HTTP gateway: their key names and their records. Pure, except for random ids.

Hashes of Redis go in, and records come out, or None for what is no record; a record's `fields` are what is stored. The
scripts of files and batches know the same names and fields.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from typing import Any

from streamfleet.common.protocol import LANES, MESSAGES, Lane

FILE, BATCH, JOB = "file-", "batch_", "job_"
_ID = re.compile(r"(file-|batch_|job_)[0-9a-f]{32}")


class BatchNames:
    """Redis keys of files and batches; all share the hash tag of the gateway's other keys.

    Args:
        base: prefix of all keys of the gateway (`GatewayNames.base`).
    """

    def __init__(self, base: str) -> None:
        self.base = base
        self.open = f"{base}open_batches"
        """Sorted set: open batches by the end of their lease, epoch ms; before the first lease, by the time of
        creation."""
        self.ends = f"{base}file_ends"
        """Sorted set: files by the time at which they expire, epoch ms."""
        self.loose = f"{base}loose"
        """Sorted set: contents that no file owns, by the time from which they may be deleted, epoch ms."""

    def file(self, file_id: str) -> str:
        """Hash: one file."""
        return f"{self.base}file:{file_id}"

    def parts(self, file_id: str) -> str:
        """List: the contents that a file consists of, in order, ``<bytes> <name>``."""
        return f"{self.base}parts:{file_id}"

    def files(self, tenant: str) -> str:
        """Sorted set: a tenant's files, by their ids, which begin with the time."""
        return f"{self.base}files:{tenant}"

    def batch(self, batch_id: str) -> str:
        """Hash: one batch."""
        return f"{self.base}batch:{batch_id}"

    def batches(self, tenant: str, kind: str = BATCH) -> str:
        """Sorted set: a tenant's batches, or jobs, by their ids, which begin with the time."""
        return f"{self.base}{'jobs' if kind == JOB else 'batches'}:{tenant}"

    def done(self, batch_id: str) -> str:
        """Bitmap: lines of a batch that are in one of its two result files; the first line is bit 0."""
        return f"{self.base}done:{batch_id}"

    def stats(self, tenant: str) -> str:
        """Hash: counters of the simple service's work for a tenant."""
        return f"{self.base}stats:{tenant}"

    def use(self, tenant: str) -> str:
        """Hash: bytes of a tenant's files, bytes of the inputs of its open batches, and their number."""
        return f"{self.base}use:{tenant}"

    def named(self, name: str) -> str:
        """Hash: the batch that was created under an Idempotency-Key, and the digest of its request."""
        return f"{self.base}named:{name}"


def new_id(kind: str, now_ms: int) -> str:
    """A new unique id; ids of one kind sort by time.

    Args:
        kind: FILE, BATCH or JOB.
        now_ms: epoch ms.
    """
    return f"{kind}{now_ms:012x}{secrets.token_hex(10)}"


def is_id(text: str, kind: str) -> bool:
    """True if the text is a well-formed id of this kind."""
    return _ID.fullmatch(text) is not None and text.startswith(kind)


class BatchStatus(StrEnum):
    """Status of a batch, in OpenAI's words."""

    VALIDATING = "validating"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    FAILED = "failed"
    EXPIRED = "expired"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"

    @property
    def ended(self) -> bool:
        """True if the status is final."""
        return self in _ENDED


_ENDED = frozenset({BatchStatus.COMPLETED, BatchStatus.FAILED, BatchStatus.EXPIRED, BatchStatus.CANCELLED})
_STATUSES: Mapping[str, BatchStatus] = {status: status for status in BatchStatus}


@dataclass(frozen=True, slots=True)
class FileRecord:
    """One file.

    Attributes:
        id: id that callers see.
        tenant: the owner; empty where keys are off.
        filename: the caller's name for the file.
        purpose: OpenAI's word for its use.
        bytes: its size.
        created_ms, expires_ms: epoch ms.
    """

    id: str
    tenant: str
    filename: str
    purpose: str
    bytes: int
    created_ms: int
    expires_ms: int

    def fields(self) -> dict[str, str]:
        """The fields as the file's hash holds them."""
        return {name: str(value) for name, value in asdict(self).items() if name != "id"}


@dataclass(frozen=True, slots=True)
class Part:
    """One content of a file: its name in the store, and its size in bytes."""

    name: str
    bytes: int

    def encoded(self) -> str:
        """The part as the file's list holds it."""
        return f"{self.bytes} {self.name}"


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """One batch.

    Attributes:
        id: id that callers see; the ids of its requests begin with it.
        tenant: the owner; empty where keys are off.
        input_file_id, output_file_id, error_file_id: its files; the last two exist once they have content.
        endpoint: OpenAI path of all its requests.
        window: OpenAI's completion_window, as the caller wrote it.
        lane: priority of its requests.
        created_ms, deadline_ms: epoch ms.
        status: its current status.
        metadata: the caller's own values.
        callback_url: URL that is called at its end; empty for none.
        total, completed, failed: number of lines: all (0 until they are counted), those in the output file, those in
        the error file.
        late, cancelled: lines that failed because the deadline had passed, or the batch was cancelled.
        prompt_tokens, completion_tokens: tokens of the lines that succeeded.
        cached_tokens: those of the prompts that came from a prefix cache.
        mark: lines up to this one may have been enqueued.
        models: queue and served name of each model, as found when the lines were checked.
        errors: errors of the first refused lines, or of the whole batch; OpenAI's error objects.
        times: epoch ms of each status that it has reached.
        payer, tokens_per_minute: id and limit of the API key whose tokens its lines use up; empty and 0 for none.
        output_bytes, error_bytes: sizes of its two files so far.
        named: name of its Idempotency-Key; empty for none.
        output_kept_ms: for how long the files of its results are kept from their creation on; 0 for as long as others.
        stumbles: number of times in a row that a gateway gave it up without progress.
    """

    id: str
    tenant: str
    input_file_id: str
    output_file_id: str
    error_file_id: str
    endpoint: str
    window: str
    lane: Lane
    created_ms: int
    deadline_ms: int
    status: BatchStatus = BatchStatus.VALIDATING
    metadata: Mapping[str, str] | None = None
    callback_url: str = ""
    total: int = 0
    completed: int = 0
    failed: int = 0
    late: int = 0
    cancelled: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    mark: int = 0
    models: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    errors: tuple[Mapping[str, Any], ...] = ()
    times: Mapping[str, int] = field(default_factory=dict)
    payer: str = ""
    tokens_per_minute: int = 0
    output_bytes: int = 0
    error_bytes: int = 0
    stumbles: int = 0
    named: str = ""
    output_kept_ms: int = 0

    @property
    def written_here(self) -> bool:
        """True if the gateway wrote its input: each line gets a result, and the input is erased at the end."""
        return self.id.startswith(JOB) or self.endpoint == MESSAGES

    def fields(self) -> dict[str, str]:
        """The fields that its hash has from the start."""
        return {name: str(getattr(self, name)) for name in _AT_FIRST} | {"metadata": stored_metadata(self.metadata)}


def stored_metadata(metadata: Mapping[str, str] | None) -> str:
    """Metadata of a batch as its hash holds it."""
    return json.dumps(metadata)


def read_file(file_id: str, fields: Mapping[bytes, bytes]) -> FileRecord | None:
    """The file in a hash's fields; None if there is none, or the fields are not a file's."""
    text = _text(fields)
    try:
        return FileRecord(
            file_id,
            text["tenant"],
            text["filename"],
            text["purpose"],
            *(int(text[name]) for name in ("bytes", "created_ms", "expires_ms")),
        )
    except (KeyError, ValueError):
        return None


def read_part(text: bytes) -> Part:
    """Read one part from the file's list."""
    size, _, name = text.decode(errors="replace").partition(" ")
    return Part(name, int(size) if size.isdigit() else 0)


def read_batch(batch_id: str, fields: Mapping[bytes, bytes]) -> BatchRecord | None:
    """The batch in a hash's fields; None if there is none, or the fields are not a batch's."""
    text = _text(fields)
    if text.get("lane") not in LANES or text.get("status") not in _STATUSES:
        return None
    try:
        given: dict[str, Any] = {name: text[name] for name in _TEXTS}
        given |= {name: text.get(name, "") for name in ("callback_url", "named", "payer")}
        given |= {name: int(text.get(name, 0)) for name in _COUNTS} | {name: int(text[name]) for name in _TIMES}
        return BatchRecord(
            batch_id,
            lane=Lane(text["lane"]),
            status=_STATUSES[text["status"]],
            metadata=_json(text.get("metadata"), None),
            models={name: (queue, served) for name, (queue, served) in _json(text.get("models"), {}).items()},
            errors=tuple(_json(text.get("errors"), [])),
            times={name: int(text[f"{name}_ms"]) for name in BatchStatus if f"{name}_ms" in text},
            **given,
        )
    except (KeyError, ValueError, TypeError, AttributeError):
        return None


_TEXTS = ("tenant", "input_file_id", "output_file_id", "error_file_id", "endpoint", "window")
_TIMES = ("created_ms", "deadline_ms")
_COUNTS = tuple(each.name for each in fields(BatchRecord) if each.type == "int" and each.name not in _TIMES)
_AT_FIRST = (
    *_TEXTS,
    *_TIMES,
    *("lane", "status", "callback_url", "total", "payer", "tokens_per_minute", "output_kept_ms"),
)


def _json(text: str | None, default: Any) -> Any:
    return json.loads(text) if text else default


def _text(fields: Mapping[bytes, bytes]) -> dict[str, str]:
    return {key.decode(errors="replace"): value.decode(errors="replace") for key, value in fields.items()}
