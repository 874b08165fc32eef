"""Cancels all requests of one tenant that have not ended: `python examples/cancel_tenant.py QUEUE TENANT`.

Redis's address is in REDIS_URL.
"""

import os
import sys

import redis

from streamfleet.producer import SyncClient

URL = os.environ.get("REDIS_URL", "redis://localhost:6379/0")
QUEUE, TENANT = sys.argv[1:3]
server, cancelled = redis.Redis.from_url(URL), 0
with SyncClient(URL, QUEUE) as fleet:
    for lane in ("critical", "high", "normal", "low"):
        start = "-"
        while entries := server.xrange(f"{{{QUEUE}}}:lane:{lane}", start, "+", count=500):
            for stream_id, fields in entries:
                if fields.get(b"tenant") == TENANT.encode():
                    name = fields.get(b"id", b"").decode() or f"{lane}:{stream_id.decode()}"
                    cancelled += fleet.cancel(name)
            start = f"({entries[-1][0].decode()}"
print(f"{cancelled} cancelled")
