-- @include webhooks
-- Make a dead webhook outstanding again, with all its attempts; its id stays.
-- KEYS: shared by the webhook scripts. ARGV: 1 limits; 2 dead letter id; 3 id; 4 message.
-- Returns 1 if it is outstanding, also if it was requeued before; 0 if there is no such dead letter.
local letter, id = ARGV[2], ARGV[3]
-- @guard webhook_requeue: not what is gone
if not call('XRANGE', DEAD, letter, letter)[1] then return call('HEXISTS', MESSAGES, id) end
if call('HEXISTS', MESSAGES, id) == 0 then
  call('HSET', MESSAGES, id, ARGV[4])   -- first: a full server may refuse it
  make_due(id)
end
-- @guard webhook_requeue: it has not ended any more
call('ZREM', ENDED, id)
call('XDEL', DEAD, letter)
return 1
