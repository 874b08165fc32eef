-- Take the turn at the housekeeping, unless another worker has it. Plain commands would do, but while a cluster moves the
-- queue's slot, they are answered and scripts are not, and who hears nothing knows that nobody renews.
-- KEYS: 1 the lock; 2 the hash `sched`; 3 the hash `workers`. ARGV: 1 worker; 2 how long it has the turn (ms); 3 after how
--   long without a turn of anybody's (ms) nobody can have renewed either.
-- Returns 1 when the turn is this worker's, else 0; then for how long turns have come without such a gap (ms); how many
--   workers there are; and what the clock shows (epoch ms).
local alive = redis.call('HLEN', KEYS[3])
local known = redis.call('HMGET', KEYS[2], 'turn', 'turns_from')
local last, from = tonumber(known[1]), tonumber(known[2])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local since = last and now - last or -1   -- below 0 where the clock was set back, too
redis.call('HDEL', KEYS[2], '')   -- first: a full server allows it, and then the lock
if not redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then
  -- A lock that outlasts its turn never ends by itself: somebody wrote it by hand, of whatever type, or set the clock back.
  if since >= 0 and since <= 10 * tonumber(ARGV[2]) then return {0, 0, alive, now} end
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
end
if not from or since < 0 or since > tonumber(ARGV[3]) then from = now end
redis.call('HSET', KEYS[2], 'turn', string.format('%.0f', now), 'turns_from', string.format('%.0f', from))
return {1, now - from, alive, now}
