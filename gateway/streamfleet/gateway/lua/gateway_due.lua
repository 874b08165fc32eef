-- @include gateway_clock
-- Take the reservations that are due for a check; no other gateway checks them for a while.
-- KEYS: 1 reservations by the time of their next check.
-- ARGV: 1 most reservations; 2 ms until they are due again; 3 epoch ms in place of the server's, or ''.
-- Returns their names.
local now = clock_ms(ARGV[3])
local names = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, ARGV[1])
for _, name in ipairs(names) do
  redis.call('ZADD', KEYS[1], string.format('%.0f', now + tonumber(ARGV[2])), name)
end
return names
