-- @include webhooks
-- Record the end of a delivery: delivered, to be tried later, handed back uncounted, or given up.
-- KEYS: shared by the webhook scripts. ARGV: 1 limits; 2 stream id; 3 id; 4 attempt; 5 ending, as `Ending` in
--   webhook_messages.py names it; 6 delay (ms); 7 reason; 8 HTTP status; 9 error.
-- Returns 1 if it is recorded; 0 if another attempt has it by then, or it had ended, and nothing was written.
local entry, id, attempt, ending, delay_ms = ARGV[2], ARGV[3], ARGV[4], ARGV[5], tonumber(ARGV[6])
-- Each taking counts as an attempt, and a webhook that is handed back, uncounted, returns as another entry.
local held = call('XPENDING', DUE, GROUP, entry, entry, 1)[1]
if not (held and call('HGET', TRIES, id) == attempt) then return 0 end
local now = now_ms()
open_for_writes()
if ending == 'dead' then
  call('XADD', DEAD, 'MAXLEN', '~', whole(cfg.dead_cap), '*', 'id', id, 'message', call('HGET', MESSAGES, id) or '',
    'attempts', attempt, 'reason', ARGV[7], 'status', ARGV[8], 'error', ARGV[9])
end
if ending == 'dead' or ending == 'delivered' then
  forget(id, now)
else
  -- @guard webhook_settle: handed back, it does not count
  if ending == 'back' then call('HINCRBY', TRIES, id, -1) end
  -- @guard webhook_settle: refusals by settings are counted
  if ARGV[7] == 'refused' then
    call('HINCRBY', TRIES, 'refused:' .. id, 1)
    call('HSET', TRIES, 'refuser:' .. id, held[2])
  end
  if delay_ms > 0 then call('ZADD', LATER, whole(now + delay_ms), id) else make_due(id) end
end
call('XACK', DUE, GROUP, entry)
call('XDEL', DUE, entry)
return 1
