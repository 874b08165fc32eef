-- @include gateway_clock
-- Take the reservations that are due for a look; no other gateway looks at them for a while.
-- KEYS: 1 reservations by when a gateway looks at them next.
-- ARGV: 1 how many at most; 2 ms until they are due again; 3 epoch ms in place of the server's, or ''.
-- Returns their names.
local now = clock_ms(ARGV[3])
local names = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, ARGV[1])
for _, name in ipairs(names) do
  redis.call('ZADD', KEYS[1], string.format('%.0f', now + tonumber(ARGV[2])), name)
end
return names
