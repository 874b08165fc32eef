"""Results of a job's prompts, read from its two files."""

from __future__ import annotations

from typing import Any

from streamfleet.common.batch_records import BatchRecord
from streamfleet.gateway.aside import Breath
from streamfleet.gateway.batches.lines import numbered
from streamfleet.gateway.files.files import Files
from streamfleet.gateway.simple.prompts import of_line

MOST_BYTES = 67_108_864
"""Of both files together; results of a larger job are read from its files."""


async def results_of(files: Files, job: BatchRecord, most_bytes: int = MOST_BYTES) -> list[dict[str, Any]] | None:
    """How each prompt of a job ended, in their order; None while it goes on, or where the files are larger than that.

    Raises:
        ContentGone, StoreUnavailable: the files cannot be read.
    """
    if not job.status.ended or job.output_bytes + job.error_bytes > most_bytes:
        return None
    found, breath = [], Breath()
    for file_id in (job.output_file_id, job.error_file_id):
        parts = await files.broker.parts(file_id)
        async for group in numbered(files.read(parts), most_bytes):
            for _, text in group:
                found.append(of_line(text))
                await breath.take()
    return sorted(found, key=lambda each: int(each["index"]))
