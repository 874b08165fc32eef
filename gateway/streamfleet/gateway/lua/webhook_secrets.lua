-- Change a tenant's signing secrets, unless they were changed meanwhile.
-- KEYS: 1 all tenants' secrets, a hash. ARGV: 1 tenant; 2 expected old value, or ''; 3 new value.
-- Returns 1 if the new value is stored; 0 if the old value was another one, and nothing was written.
local found = redis.call('HGET', KEYS[1], ARGV[1]) or ''
if found ~= ARGV[2] then return found == ARGV[3] and 1 or 0 end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
return 1
