"""The gateway's settings for files, batches and the simple service."""

from __future__ import annotations

import re

from pydantic import Field, field_validator

from streamfleet.common.settings_group import Group

_URL = re.compile(r"[a-z][a-z0-9+.-]*://.*")


class BatchSettings(Group):
    """Files, batches and the simple service of `streamfleet gateway`."""

    gateway_files: str = Field(
        "file://~/.local/share/streamfleet/files",
        description=(
            "Where the contents of files are stored: a URL that fsspec knows, such as file:///var/lib/streamfleet or "
            "s3://bucket/folder. Several replicas need one that all of them reach."
        ),
    )
    gateway_file_max_bytes: int = Field(1_073_741_824, ge=1_024, description="Largest file, in bytes.")
    gateway_file_ttl_ms: int = Field(
        2_592_000_000, ge=60_000, description="How long files, and batches that have ended, are kept, in ms."
    )
    gateway_file_bytes_per_tenant: int = Field(
        0, ge=0, description="How many bytes all files of a tenant may have together; 0 for any."
    )
    gateway_upload_idle_s: float = Field(
        30.0, gt=0, description="How long an upload may send nothing, in seconds; then it is cut off."
    )
    gateway_batch_window: int = Field(
        1_000, ge=1, le=100_000, description="How many requests of one batch are in the queue at most."
    )
    gateway_batches_at_once: int = Field(
        8, ge=0, description="How many batches a gateway runs at once; others wait. 0: this one runs none."
    )
    gateway_batch_max_requests: int = Field(
        1_000_000, ge=1, description="Most lines of a batch: about 100 bytes of memory each while they are checked."
    )
    gateway_batch_max_body_bytes: int = Field(
        1_048_576,
        ge=1_024,
        description="Largest request body on a line of a batch, in bytes; at most STREAMFLEET_MAX_BODY_BYTES.",
    )
    gateway_batch_max_window_ms: int = Field(
        604_800_000, ge=1_000, description="Longest completion_window that a batch may name, in ms."
    )
    gateway_batch_tokens_per_tenant: int = Field(
        0,
        ge=0,
        description=(
            "How many tokens the inputs of a tenant's batches that have not ended may have together, at four bytes "
            "each; 0 for any."
        ),
    )
    gateway_batch_lease_ms: int = Field(
        15_000, ge=500, description="A gateway that is silent for so long loses its batches to others, in ms."
    )
    gateway_simple_max_prompts: int = Field(
        1_000, ge=1, description="Most prompts of one call of /v1/batch/sync or /v1/batch/async."
    )
    gateway_simple_max_bytes: int = Field(
        8_388_608,
        ge=1_024,
        description="Largest body of such a call, and most that its requests may have together, in bytes.",
    )

    @field_validator("gateway_files")
    @classmethod
    def _usable_url(cls, value: str) -> str:
        if not _URL.fullmatch(value):
            raise ValueError(f"must be a URL such as file:///var/lib/streamfleet or s3://bucket/folder, not {value!r}")
        return value
