-- @include bucket
-- Settle a reservation once, for the first caller: charge the used tokens instead of the reserved ones.
-- KEYS: 1 allowance of the key, a hash; 2 the reservation, a hash; 3 reservations by the time of their next check; 4 the key's
--   reservations that are remembered as settled, a list: 100,000 of them.
-- ARGV: 1 name of the reservation; 2 tokens used, or '' from a sender whose request was refused: the last of these
--   senders returns everything; 3 time for which a named request's reservation stays marked as settled (ms), so that
--   sending it again costs nothing; 4 epoch ms in place of the server's, or ''; 5 serial of the reservation.
-- Returns 1 settled; 0 it was settled before, or does not exist; 2 another sender's request may have been accepted.
local found = redis.call('HMGET', KEYS[2], 'tokens', 'limit', 'used', 'named', 'senders', 'serial')
local reserved, capacity, now = tonumber(found[1]), tonumber(found[2]), clock_ms(ARGV[4])
if found[3] or found[6] and found[6] ~= ARGV[5] then return 0 end
redis.call('ZREM', KEYS[3], '')   -- first: it needs no memory, and a full server then allows the rest too
if ARGV[2] == '' and (tonumber(found[5]) or 0) > 1 then
  redis.call('HINCRBY', KEYS[2], 'senders', -1)
  return 2
end
redis.call('ZREM', KEYS[3], ARGV[1])
if not reserved or not capacity then return 0 end
local used = tonumber(ARGV[2]) or 0
local left = left_of(KEYS[1], 'tokens', capacity, now)
keep_left(KEYS[1], 'tokens', math.min(capacity, left + reserved - used), capacity, now)
if ARGV[2] ~= '' and found[4] == '1' then
  redis.call('HSET', KEYS[2], 'used', ARGV[2])
  redis.call('PEXPIRE', KEYS[2], ARGV[3])
  local known = redis.call('RPUSH', KEYS[4], ARGV[1])
  redis.call('PEXPIRE', KEYS[4], ARGV[3])
  local oldest = known > 100000 and redis.call('LPOP', KEYS[4])
  local key = oldest and string.sub(KEYS[2], 1, -#ARGV[1] - 1) .. oldest
  -- @guard settle: what is settled is bounded by key
  if key and redis.call('HMGET', key, 'used')[1] then redis.call('DEL', key) end
else
  redis.call('DEL', KEYS[2])
end
return 1
