-- @include keys
-- Write a worker's heartbeat, with its description.
-- KEYS: shared. ARGV: 1 configuration; 2 worker; 3 JSON description.
-- Returns the server's time in epoch ms.
open_for_writes()   -- a full server must not make the workers that drain it look dead
local description, now = cjson.decode(ARGV[3]), now_ms()
description.seen_ms = now
call('HSET', WORKERS, ARGV[2], cjson.encode(description))
return string.format('%.0f', now)
