-- Add to a stream of requests to workers, also on a full server, because what workers do for it frees memory.
-- KEYS: 1 the stream; 2 a key that never exists, and that the caller may delete. ARGV: 1 approximate length of the
--   stream; then names and values of the fields.
-- Returns the new stream id.
-- @guard ask: also on a full server
redis.call('DEL', KEYS[2])   -- first: a full server allows it, and then also what follows
return redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[1], '*', unpack(ARGV, 2))
