-- @include gateway_clock
-- Ask for a batch to end. The gateway that has it cancels its outstanding requests, and saves the answers so far.
-- KEYS: 1 the batch, a hash.
-- ARGV: 1 its tenant; 2 epoch ms in place of the server's, or ''.
-- Returns its new status; '' if the tenant has no such batch.
local found = redis.call('HMGET', KEYS[1], 'tenant', 'status')
-- @guard gateway_batch_cancel: whose it is
if found[1] ~= ARGV[1] then return '' end
-- @guard gateway_batch_cancel: only before its end
if found[2] ~= 'validating' and found[2] ~= 'in_progress' then return found[2] end
local now = string.format('%.0f', clock_ms(ARGV[2]))
redis.call('HSET', KEYS[1], 'status', 'cancelling', 'cancelling_ms', now)
return 'cancelling'
