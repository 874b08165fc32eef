-- Change a field of a hash: the record of an API key, a tenant's signing secrets, or a mark of a stored response.
-- KEYS: 1 the hash. ARGV: 1 field; 2 expected old value, or ''; 3 new value.
-- Returns 1 if the new value is stored; 0 if the old value was another one, and nothing was written.
local found = redis.call('HGET', KEYS[1], ARGV[1]) or ''
-- @guard gateway_change: unless somebody else was faster
if found ~= ARGV[2] then return found == ARGV[3] and 1 or 0 end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
return 1
