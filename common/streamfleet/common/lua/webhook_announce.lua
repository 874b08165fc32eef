-- @include webhooks
-- Accept a webhook, each id once.
-- KEYS: shared by the webhook scripts. ARGV: 1 limits; 2 id; 3 message.
-- Returns 1 accepted; 0 its id is outstanding, or has ended not long ago; -1 there are too many.
local id = ARGV[2]
if call('HEXISTS', MESSAGES, id) == 1 or call('ZSCORE', ENDED, id) then return 0 end
if call('HLEN', MESSAGES) >= cfg.outstanding then return -1 end
call('HSET', MESSAGES, id, ARGV[3])
make_due(id)
return 1
