-- @include keys
-- Write a worker's heartbeat, with its description, and read the queue's configuration.
-- KEYS: shared; the hash `meta`. ARGV: 1 configuration; 2 worker; 3 JSON description.
-- Returns the fields and values of `meta`; nil if it was overwritten by hand.
open_for_writes()   -- a full server must not make the workers that drain it look dead
local description, now = cjson.decode(ARGV[3]), now_ms()
description.seen_ms = now
call('HSET', WORKERS, ARGV[2], cjson.encode(description))
return call_if_typed('HGETALL', KEYS[SHARED + 1])
