-- @include webhooks
-- Accept a webhook, each id once.
-- KEYS: shared by the webhook scripts; 7 what tenants use, a hash. ARGV: 1 limits; 2 id; 3 message; 4 tenant, or '';
--   5 what stands in every message of the tenant, and in no other.
-- Returns 1 accepted; 0 its id is outstanding, or has ended not long ago; -1 there are too many; -2 of its tenant.
local id, tenant, mark = ARGV[2], ARGV[4], ARGV[5]
if call('HEXISTS', MESSAGES, id) == 1 or call('ZSCORE', ENDED, id) then return 0 end
if call('HLEN', MESSAGES) >= cfg.outstanding then return -1 end

-- A tenant's count only grows, so that nothing that ends a webhook has to know of it. Where it reaches the limit, what is
-- outstanding is counted anew: once a second at most, as that reads all messages.
local count, counted = 'count:' .. tenant, 'counted:' .. tenant
local known = tenant ~= '' and redis.pcall('HMGET', KEYS[7], count, counted)
if known and not known.err then   -- ACL rules that were made before this key do not have it
  local mine, now = tonumber(known[1]), now_ms()
  if not mine or (mine >= cfg.per_tenant and math.abs(now - (tonumber(known[2]) or 0)) >= 1000) then
    mine = 0
    local all = call('HGETALL', MESSAGES)
    for i = 2, #all, 2 do if string.find(all[i], mark, 1, true) then mine = mine + 1 end end
    call('HSET', KEYS[7], count, whole(mine), counted, whole(now))
  end
  if mine >= cfg.per_tenant then return -2 end
end
call('HSET', MESSAGES, id, ARGV[3])
make_due(id)
if known and not known.err then call('HINCRBY', KEYS[7], count, 1) end
return 1
