#!/bin/sh
# Enqueue with redis-cli, wait for the result, and look at the queue by hand. Needs a worker.
set -eu

cli() { redis-cli -u "${REDIS_URL:-redis://localhost:6379/0}" "$@"; }
queue='{default}' # the braces belong to the key
id="by-hand-$$"

cli XADD "$queue:lane:high" '*' id "$id" body '{"messages":[{"role":"user","content":"Say hi"}],"max_tokens":8}'

until [ "$(cli HEXISTS "$queue:result:$id" status)" = 1 ]; do sleep 0.2; done
cli HGETALL "$queue:result:$id"

echo "outstanding in the lane: $(cli XLEN "$queue:lane:high")"
echo "running, for each worker:"
cli XPENDING "$queue:lane:high" workers
echo "next to run, by deadline:"
cli ZRANGE "$queue:ready:high" 0 9 WITHSCORES
echo "newest dead letters:"
cli XREVRANGE "$queue:dead" + - COUNT 3
