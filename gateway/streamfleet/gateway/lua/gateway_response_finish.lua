-- @include gateway_response
-- End a stored response, once. It stays among those that have not ended while its end is to be announced.
-- KEYS: as in lib/gateway_response.lua.
-- ARGV: 1 id; 2 its bytes from now on; 3 life (ms); 4 and 5 most responses of a tenant, and most bytes of them; 6 '1' if
--   its end is to be announced; 7 ids of the items of its output, with blanks between; then names and values of its fields.
-- Returns 1 ended; 0 it had ended before, or is gone.
local was = call('HMGET', KEYS[1], 'status', 'bytes', 'created_ms', 'response')
-- @guard gateway_response_finish: it ends once
if was[1] ~= 'in_progress' then return 0 end
call('ZREM', KEYS[2], ARGV[1] .. ' ' .. was[2])   -- first: it needs no memory, and a full server then allows the rest too
give_back(KEYS[3], 'response_bytes', tonumber(was[2]), used(KEYS[3], 'response_bytes'))
-- Where that does not make room it goes beyond the bound: an answer is not thrown away. The next one that needs room forgets it.
make_room(tonumber(ARGV[4]), tonumber(ARGV[5]), 0, 1, tonumber(ARGV[2]))
call('HSET', KEYS[1], 'bytes', ARGV[2], 'items', ARGV[7], unpack(ARGV, 8))
for _, key in ipairs(item_keys(ARGV[1], ARGV[7])) do call('SET', key, ARGV[1], 'PX', ARGV[3]) end
keep(was[3], ARGV[2], ARGV[3])
-- @guard gateway_response_finish: a content that was replaced is let go
if call('HGET', KEYS[1], 'response') ~= was[4] then let_go({was[4]}) end
if ARGV[6] ~= '1' then call('ZREM', KEYS[5], ARGV[1]) end
return 1
