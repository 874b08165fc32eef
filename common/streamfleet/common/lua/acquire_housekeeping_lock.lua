-- Acquire the housekeeping lock for one turn, unless another worker has it. A script, although plain commands would do:
-- while a cluster moves the queue's slot, commands are answered and scripts are not, and a worker without an answer
-- knows that nobody renews.
-- KEYS: 1 the lock; 2 the hash `clock`; 3 the hash `workers`; then the lanes. ARGV: 1 worker; 2 length of its turn (ms);
--   3 time without any turn after which nobody can have renewed either (ms).
-- Returns 1 if the turn is this worker's, else 0; then the time for which turns have come without such a gap (ms); the
--   number of workers; the server's clock (epoch ms); and if the turn is this worker's, its number, and the number of
--   entries.
local alive = redis.call('HLEN', KEYS[3])
local known = redis.call('HMGET', KEYS[2], 'turn', 'turns_from', 'turns')
local last, from = tonumber(known[1]), tonumber(known[2])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local since = last and now - last or -1   -- below 0 also if the clock was set back
-- @guard acquire_housekeeping_lock: a full server too
redis.call('HDEL', KEYS[2], '')   -- first: a full server allows it, and then the lock
if not redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then
  -- A lock that outlasts its turn never expires: it was written by hand, with any type, or the clock was set back.
  if since >= 0 and since <= 10 * tonumber(ARGV[2]) then return {0, 0, alive, now} end
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
end
if not from or since < 0 or since > tonumber(ARGV[3]) then from = now end
local number, entries = tonumber(known[3] or 0), 0
number = number and number + 1 or 0   -- what hands wrote goes; turn 0 does all work
redis.call('HSET', KEYS[2], 'turn', string.format('%.0f', now), 'turns_from', string.format('%.0f', from), 'turns',
  string.format('%.0f', number))
for i = 4, #KEYS do entries = entries + (tonumber(redis.pcall('XLEN', KEYS[i])) or 1) end
return {1, now - from, alive, now, number, entries}
