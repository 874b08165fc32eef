-- @include bucket
-- Reserve tokens: subtract the expected use of a request from its key's allowance. The reservation stays until
-- gateway_settle.lua replaces it with the actual use. A request has one reservation, however often it is sent.
-- KEYS: 1 allowance of the key, a hash; 2 the reservation, a hash; 3 reservations by the time of their next check.
-- ARGV: 1 tokens a minute; 2 most tokens to take; 3 name of the reservation; 4 ms until its first check; 5 serial of the
--   settled reservation of this name that this one replaces, or ''; 6 its own serial; 7 epoch ms in place of the
--   server's, or ''; 8 least tokens to take; then names and values of its fields.
-- Returns code, tokens left, ms until all are there again, ms to wait, serial, tokens taken: code 1 taken; 0 not enough
--   are left; 2 they were taken when the same request was sent before; 3 that request has been settled.
local capacity, now = tonumber(ARGV[1]), clock_ms(ARGV[7])
local least, taken = tonumber(ARGV[8]), tonumber(ARGV[2])
local known = redis.call('HMGET', KEYS[2], 'tokens', 'used', 'serial')
local left = left_of(KEYS[1], 'tokens', capacity, now)
local code, serial = 1, ARGV[6]
if known[2] and known[3] ~= ARGV[5] then
  code, serial = 3, known[3] or ''
elseif known[1] and not known[2] then
  code, serial, taken = 2, known[3] or '', tonumber(known[1])
elseif least > left then
  return {0, math.floor(left), until_ms(left, capacity, capacity), until_ms(left, least, capacity), '', 0}
end
if code == 1 then
  -- Of a request without a limit, no more than is left.
  -- @guard gateway_reserve: of a request without a limit, no more than is left
  taken = math.min(taken, math.floor(left))
  left = left - taken
  keep_left(KEYS[1], 'tokens', left, capacity, now)
  redis.call('DEL', KEYS[2])
  redis.call('HSET', KEYS[2], 'tokens', string.format('%.0f', taken), 'limit', ARGV[1], 'serial', serial, unpack(ARGV, 9))
  redis.call('ZADD', KEYS[3], string.format('%.0f', now + tonumber(ARGV[4])), ARGV[3])
end
if code < 3 then
  redis.call('HINCRBY', KEYS[2], 'senders', 1)
  redis.call('HSET', KEYS[2], 'sent_ms', string.format('%.0f', now))
end
return {code, math.floor(left), until_ms(left, capacity, capacity), 0, serial, taken or 0}
