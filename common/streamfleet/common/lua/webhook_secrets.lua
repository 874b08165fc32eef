-- Change a tenant's signing secrets, unless somebody else changed them meanwhile.
-- KEYS: 1 all tenants' secrets, a hash. ARGV: 1 tenant; 2 what stood there, or ''; 3 what is to stand there.
-- Returns 1 when it stands there; 0 when something else stood there, and nothing was written.
local found = redis.call('HGET', KEYS[1], ARGV[1]) or ''
if found ~= ARGV[2] then return found == ARGV[3] and 1 or 0 end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
return 1
