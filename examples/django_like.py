"""A service without an event loop: one SyncClient for the whole process, shared by its threads.

The functions are views as Django or Flask would call them: one starts a job and answers at once, the other is polled.
"""

from datetime import timedelta
from typing import Any

from streamfleet.common.errors import QueueFull
from streamfleet.producer import SyncClient

# Connects at its first use, so each forked worker of a server gets its own connection.
fleet = SyncClient()


def start_summary(document_id: str, text: str) -> tuple[int, dict[str, Any]]:
    """POST /summaries: 202, or 503 while the lane is full."""
    body = {"messages": [{"role": "user", "content": f"Summarise in one sentence: {text}"}], "max_tokens": 48}
    try:
        # A user who clicks twice asks for the same request: same id, same body.
        handle = fleet.enqueue(body, id=f"summary-{document_id}", deadline=timedelta(minutes=5))
    except QueueFull:
        return 503, {"detail": "busy, try again soon"}
    return 202, {"id": handle.id}


def get_summary(request_id: str) -> tuple[int, dict[str, Any]]:
    """GET /summaries/<id>: 200 with the summary, or 202 with the request's state."""
    try:
        result = fleet.result(request_id, timeout=2)
    except TimeoutError:
        return 202, {"state": fleet.status(request_id).state}
    if not result.ok:
        return 502, {"state": result.status.value, "error": result.error}
    return 200, {"summary": result.text}


if __name__ == "__main__":
    status, answer = start_summary("7", "Redis Streams keep entries until they are acknowledged and deleted.")
    print(status, answer)
    while status == 202:
        status, answer = get_summary("summary-7")
        print(status, answer)
    fleet.close()
