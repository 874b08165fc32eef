-- @include gateway_clock
-- @include gateway_batch
-- Renew the lease of a batch, hand the batch back, or take it off the open ones.
-- KEYS: 1 the batch, a hash; 2 open batches.
-- ARGV: 1 batch id; 2 epoch; 3 time in which nobody else may take it (ms), or '' to take it off; 4 '1': it is handed
--   back without progress, because of a failure; 5 epoch ms in place of the server's, or ''.
-- Returns its status; '' if another gateway has it, or it is not open any more.
if theirs() or not call('ZSCORE', KEYS[2], ARGV[1]) then return '' end
call('ZREM', KEYS[2], ARGV[1])   -- first: it needs no memory, and a full server then allows the rest too
if ARGV[3] ~= '' then call('ZADD', KEYS[2], clock_ms(ARGV[5]) + tonumber(ARGV[3]), ARGV[1]) end
if ARGV[4] == '1' then call('HINCRBY', KEYS[1], 'stumbles', 1) end
return call('HGET', KEYS[1], 'status')
