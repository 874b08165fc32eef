-- @include gateway_response
-- Delete a stored response; its contents may be deleted from now on.
-- KEYS: as in lib/gateway_response.lua. ARGV: 1 id.
-- Returns 1 deleted; 0 it is not there.
local bytes = call('HGET', KEYS[1], 'bytes')
if not bytes then return 0 end
forget(ARGV[1] .. ' ' .. bytes)
return 1
