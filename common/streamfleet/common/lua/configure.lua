-- Write the queue's configuration, and tell the workers of a change.
-- KEYS: 1 the hash `meta`; 2 the hash `lanes`; 3 the stream `cancels`. ARGV: 1 approximate length of the stream; 2 'set',
--   or 'add' to write only what is missing; then fields and values.
-- Returns all fields and values.
local set = ARGV[2] == 'set'
-- @guard configure: a wrong type is noticed before a write
redis.call('HGETALL', KEYS[1])
-- @guard configure: a full server too
redis.call('HDEL', KEYS[2], '')   -- first: a full server allows it, and then the others
-- @guard configure: workers are told of a change
if set then redis.call('XADD', KEYS[3], 'MAXLEN', '~', ARGV[1], '*', 'configuration', 'set') end
for at = 3, #ARGV, 2 do redis.call(set and 'HSET' or 'HSETNX', KEYS[1], ARGV[at], ARGV[at + 1]) end
return redis.call('HGETALL', KEYS[1])
