"""Results of a job's prompts, read from its two files in the store."""

from __future__ import annotations

from typing import Any

from streamfleet.gateway.aside import Breath
from streamfleet.gateway.batch_records import BatchRecord
from streamfleet.gateway.batches.lines import number_lines
from streamfleet.gateway.files.files import Files
from streamfleet.gateway.simple.prompts import of_line

MOST_BYTES = 67_108_864
"""Most bytes of both files; results of a larger job are read from its files only."""


async def results_of(files: Files, job: BatchRecord, most_bytes: int = MOST_BYTES) -> list[dict[str, Any]] | None:
    """Returns the results of a job's prompts, in their order; None while it runs, or if its files are too large.

    Raises:
        ContentGone, StoreUnavailable: the files cannot be read.
    """
    if not job.status.ended or job.output_bytes + job.error_bytes > most_bytes:
        return None
    found, breath = [], Breath()
    for file_id in (job.output_file_id, job.error_file_id):
        parts = await files.broker.parts(file_id)
        async for group in number_lines(files.read(parts), most_bytes):
            for _, text in group:
                found.append(of_line(text))
                await breath.take()
    return sorted(found, key=lambda each: int(each["index"]))
