-- @include gateway_clock
-- @include gateway_response
-- Store a response whose request is in its queue. The tenant's oldest ones make room for it.
-- KEYS: as in lib/gateway_response.lua.
-- ARGV: 1 id; 2 its bytes; 3 epoch ms in place of the server's, or ''; 4 life (ms); 5 and 6 most responses of a tenant, and
--   most bytes of them; 7 time until a gateway looks whether it has ended (ms); 8 when the one was stored that it replaces (epoch
--   ms), or 0; then names and values of its fields.
-- Returns when it was stored (epoch ms), also if that was before; '' if too many have not ended; 'again' to be called again.
local known = call('HGET', KEYS[1], 'created_ms')
-- @guard gateway_response_add: asked again
if known and known ~= ARGV[8] then return known end
local now, life = clock_ms(ARGV[3]), tonumber(ARGV[4])
local no_room = make_room(tonumber(ARGV[5]), tonumber(ARGV[6]), now - life, 1, tonumber(ARGV[2]))
if no_room then return no_room end
local old = call('HGET', KEYS[1], 'bytes')
-- @guard gateway_response_add: what is replaced goes
if old then forget(ARGV[1] .. ' ' .. old) end
local created = string.format('%.0f', now)
call('HSET', KEYS[1], 'created_ms', created, 'bytes', ARGV[2], unpack(ARGV, 9))
call('PEXPIRE', KEYS[1], ARGV[4])
keep(created, ARGV[2], ARGV[4])
call('ZADD', KEYS[5], string.format('%.0f', now + tonumber(ARGV[7])), ARGV[1])
return created
