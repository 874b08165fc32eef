"""Reads and checks the parameters of a new batch. Pure.

Body and headers go in; a `BatchParameters`, a lane and a name come out, or an error that names the wrong field.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from streamfleet.common.durations import parse_span
from streamfleet.common.errors import InvalidRequest
from streamfleet.common.protocol import Lane
from streamfleet.gateway.batch_records import FILE, is_id, stored_metadata
from streamfleet.gateway.broker.batches import Naming
from streamfleet.gateway.errors import NOT_AGAIN, ApiError
from streamfleet.gateway.files.upload import LEAST_KEPT_S, MOST_KEPT_S
from streamfleet.gateway.request_parameters import BATCH_ENDPOINTS, Bounds, read_parameters, request_id

MOST_PAIRS, MOST_KEY_CHARS, MOST_VALUE_CHARS = 16, 64, 512
MOST_METADATA_BYTES = 16_384
"""Most bytes of metadata as Redis holds it: JSON, with escapes."""
LEAST_WINDOW_MS, MOST_WINDOW_MS = 1_000, 604_800_000
"""Shortest and longest completion_window: a second, and a week, for which Redis remembers each line that is done."""
USUAL_WINDOW = "24h"


@dataclass(frozen=True, slots=True)
class BatchParameters:
    """Parameters of a new batch.

    Attributes:
        input_file_id, endpoint, window, metadata: as in OpenAI's API.
        window_ms: the window, in milliseconds.
        callback_url: URL to call when the batch ends; None for no call. Its target is not checked here.
        output_kept_ms: for how long the files of its results are kept from their creation on; 0 for as long as others.
    """

    input_file_id: str
    endpoint: str
    window: str
    window_ms: int
    metadata: Mapping[str, str] | None
    callback_url: str | None
    output_kept_ms: int = 0


def read_batch_parameters(body: Mapping[str, Any]) -> BatchParameters:
    """Returns all parameters of a batch.

    Raises:
        InvalidRequest: a field is wrong; `param` names it.
    """
    file_id = _read_text(body, "input_file_id")
    if not is_id(file_id, FILE):
        raise InvalidRequest(f"must be the id of an uploaded file, file-…, not {file_id[:40]!r}", "input_file_id")
    endpoint = _read_text(body, "endpoint")
    if endpoint not in BATCH_ENDPOINTS:
        raise InvalidRequest(f"must be one of {', '.join(BATCH_ENDPOINTS)}, not {endpoint[:80]!r}", "endpoint")
    window = _read_text(body, "completion_window").strip()
    return BatchParameters(
        file_id,
        endpoint,
        window,
        read_window(window),
        read_metadata(body.get("metadata")),
        read_callback(body.get("callback_url")),
        _read_output_kept(body.get("output_expires_after")),
    )


def _read_output_kept(value: object) -> int:
    """Returns for how long the files of its results are kept (ms); 0 for as long as others. Raises InvalidRequest."""
    param = "output_expires_after"
    if value is None:
        return 0
    if not isinstance(value, dict):
        raise InvalidRequest("must be an object with anchor and seconds", param, "invalid_type")
    if value.get("anchor") != "created_at":
        raise InvalidRequest("must be created_at", f"{param}.anchor")
    seconds = value.get("seconds")
    if type(seconds) is not int or not LEAST_KEPT_S <= seconds <= MOST_KEPT_S:
        raise InvalidRequest(f"must be {LEAST_KEPT_S} to {MOST_KEPT_S} seconds", f"{param}.seconds")
    return seconds * 1000


def read_window(value: str, param: str = "completion_window") -> int:
    """Returns a duration such as ``24h``, in ms. Raises InvalidRequest."""
    window_ms = parse_span(value, param)
    if not LEAST_WINDOW_MS <= window_ms <= MOST_WINDOW_MS:
        raise InvalidRequest(f"must be at least 1s and at most {MOST_WINDOW_MS // 1000}s", param)
    return window_ms


def read_metadata(value: object) -> Mapping[str, str] | None:
    """Returns at most 16 pairs of texts, which are not too large together. Raises InvalidRequest."""
    if value is None:
        return None
    if not isinstance(value, dict) or len(value) > MOST_PAIRS:
        raise InvalidRequest(f"must be an object with at most {MOST_PAIRS} fields", "metadata", "invalid_type")
    for name, text in value.items():
        if not isinstance(text, str) or len(text) > MOST_VALUE_CHARS or len(name) > MOST_KEY_CHARS:
            limits = f"at most {MOST_KEY_CHARS} characters with a text of at most {MOST_VALUE_CHARS}"
            raise InvalidRequest(f"must have names of {limits}", f"metadata.{name[:MOST_KEY_CHARS]}")
    if (size := len(stored_metadata(value))) > MOST_METADATA_BYTES:
        text = f"must have at most {MOST_METADATA_BYTES} bytes as JSON with all but ASCII escaped, not {size}"
        raise InvalidRequest(text, "metadata")
    return value


def read_callback(value: object) -> str | None:
    """Returns a callback URL; checks only that it is a text. Raises InvalidRequest."""
    if value is not None and not isinstance(value, str):
        raise InvalidRequest("must be a URL", "callback_url", "invalid_type")
    return value or None


def choose_lane(headers: Mapping[str, str], body: Mapping[str, Any], lanes: Sequence[Lane]) -> Lane:
    """Returns the lane in header or body; without one `low`, or the least urgent lane that the caller may use.

    Raises:
        InvalidRequest: there is no such lane.
        ApiError: the caller may not use it.
    """
    if headers.get("x-streamfleet-lane") is None and body.get("service_tier") is None:
        return max(lanes, key=lambda lane: lane.rank)
    return read_parameters(headers, body, Bounds(lanes, 1, 1), 0).lane


def read_naming(
    headers: Mapping[str, str], kind: str, owner: str, asked: Mapping[str, Any], lane: Lane
) -> Naming | None:
    """Returns the caller's name for its batch or job; None without an Idempotency-Key.

    Args:
        headers: names in any case (as Starlette's).
        kind: BATCH or JOB, which do not share names.
        owner: id of the caller's API key.
        asked: the body of the request.
        lane: the chosen lane.

    Raises:
        InvalidRequest: the key is too long.
    """
    key = headers.get("idempotency-key")
    if not key:
        return None
    digest = hashlib.sha256()
    for text in json.JSONEncoder(sort_keys=True).iterencode([asked, lane]):  # in steps: other threads run in between
        digest.update(text.encode())
    return Naming(f"{kind}{request_id(owner, key)}", digest.hexdigest())


def batch_not_kept() -> ApiError:
    """Returns the answer for a batch that was asked for by this name before, and is not stored any more."""
    text = "the batch of this Idempotency-Key has ended and is not kept any more; use another key"
    return ApiError(404, text, "batch_not_found", param="Idempotency-Key", headers=NOT_AGAIN)


def _read_text(body: Mapping[str, Any], param: str) -> str:
    value = body.get(param)
    if value is None:
        raise InvalidRequest("is missing", param, "missing_required_parameter")
    if not isinstance(value, str):
        raise InvalidRequest("must be a string", param, "invalid_type")
    return value
