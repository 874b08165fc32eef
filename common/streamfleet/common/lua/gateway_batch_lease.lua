-- @include gateway_clock
-- @include gateway_batch
-- Renew the lease of a batch, hand it back, or be through with it.
-- KEYS: 1 the batch, a hash; 2 open batches.
-- ARGV: 1 batch id; 2 epoch; 3 for how long nobody else may take it (ms), or '' when it is through; 4 '1': it is handed
--   back without progress, because something went wrong; 5 epoch ms in place of the server's, or ''.
-- Returns its status; '' when it is somebody else's, or is not open any more.
if theirs() or not call('ZSCORE', KEYS[2], ARGV[1]) then return '' end
call('ZREM', KEYS[2], ARGV[1])   -- first: it needs no memory, and a full server then lets the rest pass as well
if ARGV[3] ~= '' then call('ZADD', KEYS[2], clock_ms(ARGV[5]) + tonumber(ARGV[3]), ARGV[1]) end
if ARGV[4] == '1' then call('HINCRBY', KEYS[1], 'stumbles', 1) end
return call('HGET', KEYS[1], 'status')
