-- @include gateway_clock
-- Take a batch that no gateway has, or whose gateway was silent for a whole lease.
-- KEYS: 1 the batch, a hash; 2 open batches.
-- ARGV: 1 batch id; 2 name of the taker; 3 lease (ms); 4 epoch ms in place of the server's, or ''.
-- Returns its epoch and its fields; 0 and nothing if another gateway has it, or it is not open any more.
local until_ms, now = redis.call('ZSCORE', KEYS[2], ARGV[1]), clock_ms(ARGV[4])
if not until_ms or tonumber(until_ms) > now then return {0, {}} end
redis.call('ZREM', KEYS[2], ARGV[1])   -- first: it needs no memory, and a full server then allows the rest too
-- @guard gateway_batch_take: it is gone
if redis.call('EXISTS', KEYS[1]) == 0 then return {0, {}} end
local epoch = redis.call('HINCRBY', KEYS[1], 'epoch', 1)
redis.call('HSET', KEYS[1], 'owner', ARGV[2])
redis.call('ZADD', KEYS[2], now + tonumber(ARGV[3]), ARGV[1])
return {epoch, redis.call('HGETALL', KEYS[1])}
