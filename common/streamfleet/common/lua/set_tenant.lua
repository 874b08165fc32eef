-- Set a tenant's weight, and the most of its requests that run at once, unless newer values were set.
-- KEYS: 1 hash of tenants. ARGV: 1 tenant; 2 '<weight> <most>'; 3 id of the API key that names them, or '-'; 4 when the key
--   was given them (epoch ms), or '' for values that count from now on.
-- Returns 1 if these are the tenant's values now; 0 if newer ones were set.
local before = redis.call('HMGET', KEYS[1], ARGV[1])[1] or ''
local since, at = tonumber(string.match(before, '^%S+ %d* (%d+) ') or '0'), tonumber(ARGV[4])
if not at then
  local time = redis.call('TIME')
  -- @guard set_tenant: a clock that was set back makes nothing older
  at = math.max(time[1] * 1000 + math.floor(time[2] / 1000), since + 1)
end
-- @guard set_tenant: the newest values count
if since > at then return 0 end
redis.call('HSET', KEYS[1], ARGV[1], string.format('%s %.0f %s', ARGV[2], at, ARGV[3]))
return 1
