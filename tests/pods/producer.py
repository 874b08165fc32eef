"""A producer: enqueues five requests a second until its input ends. Prints a line at the first one, then how
many, and the result of each.

Runs in a container of the client's image, which has `streamfleet` and nothing of the tests.

    python3 producer.py PREFIX MAX_TOKENS
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import sys
import time

from streamfleet.common.errors import StreamfleetError
from streamfleet.producer import SyncClient, SyncHandle

EVERY_S, RESULTS_S = 0.2, 90.0


def main(prefix: str, max_tokens: int) -> None:
    """Enqueue, wait for all results, print them."""
    handles: list[SyncHandle] = []
    with SyncClient(os.environ["REDIS_URL"]) as fleet:
        handles.append(enqueued(fleet, f"{prefix}-0", max_tokens))
        print("begun", flush=True)
        while not select.select([sys.stdin], [], [], EVERY_S)[0]:
            handles.append(enqueued(fleet, f"{prefix}-{len(handles)}", max_tokens))
        found = [
            {"id": each.id, "status": each.status, "attempt": each.attempt, "worker": each.worker}
            for each in fleet.as_completed(handles, timeout=RESULTS_S)
        ]
    print(json.dumps([len(handles), found]))


def enqueued(fleet: SyncClient, request_id: str, max_tokens: int) -> SyncHandle:
    """Enqueue a request, again and again while Redis is away: under its own id, it stays one request."""
    body = {"messages": [{"role": "user", "content": "Count to a hundred"}], "max_tokens": max_tokens}
    deadline = time.monotonic() + RESULTS_S
    while time.monotonic() < deadline:
        with contextlib.suppress(StreamfleetError):
            return fleet.enqueue(body, id=request_id)
        time.sleep(EVERY_S)
    return fleet.enqueue(body, id=request_id)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
