-- Accept a batch. Its input cannot be deleted from now on until it has ended.
-- KEYS: 1 the batch, a hash; 2 the batches of its tenant; 3 open batches; 4 its input file, a hash.
-- ARGV: 1 batch id; 2 its tenant; 3 when it was made (epoch ms): who waits for longest is taken first; then names and
--   values of its fields.
-- Returns 1 accepted, now or by the same call before; 0 the tenant has no such file.
if redis.call('EXISTS', KEYS[1]) == 1 then return 1 end
if redis.call('HGET', KEYS[4], 'tenant') ~= ARGV[2] then return 0 end
redis.call('HSET', KEYS[1], unpack(ARGV, 4))
redis.call('HINCRBY', KEYS[4], 'uses', 1)
redis.call('ZADD', KEYS[2], 0, ARGV[1])
redis.call('ZADD', KEYS[3], ARGV[3], ARGV[1])
return 1
