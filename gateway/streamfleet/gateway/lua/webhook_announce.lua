-- @include webhooks
-- Accept a webhook, each id once.
-- KEYS: shared by the webhook scripts; 7 what tenants use, a hash: `of:<id>` is the tenant of a webhook, `count:<tenant>` how
--   many it has. ARGV: 1 limits; 2 id; 3 message; 4 tenant, or ''.
-- Returns 1 accepted; 0 its id is outstanding, or ended recently; -1 there are too many; -2 its tenant has too many.
local id, tenant, USE = ARGV[2], ARGV[4], KEYS[7]
if call('HEXISTS', MESSAGES, id) == 1 or call('ZSCORE', ENDED, id) then return 0 end
if call('HLEN', MESSAGES) >= cfg.outstanding then return -1 end

-- The count only grows, so that scripts that end a webhook need not know about it.
local function count_anew(now)
  local all, counts, gone = call('HGETALL', USE), {}, {}
  for i = 1, #all, 2 do
    local of, whose = string.match(all[i], '^of:(.*)$'), all[i + 1]
    if of and call('HEXISTS', MESSAGES, of) == 1 then
      counts[whose] = (counts[whose] or 0) + 1
    else
      gone[#gone + 1] = all[i]
    end
  end
  for first = 1, #gone, 1000 do call('HDEL', USE, unpack(gone, first, math.min(first + 999, #gone))) end
  for whose, number in pairs(counts) do call('HSET', USE, 'count:' .. whose, number) end
  call('HSET', USE, 'counted', whole(now))
  return counts[tenant] or 0
end

if tenant ~= '' then
  local known, now = call('HMGET', USE, 'count:' .. tenant, 'counted'), now_ms()
  local mine = tonumber(known[1]) or 0
  local full = mine >= cfg.per_tenant or call('HLEN', USE) > 2 * cfg.outstanding
  if full and math.abs(now - (tonumber(known[2]) or 0)) >= 1000 then mine = count_anew(now) end
  -- @guard webhook_announce: bounded for each tenant
  if mine >= cfg.per_tenant then return -2 end
end
call('HSET', MESSAGES, id, ARGV[3])
make_due(id)
if tenant ~= '' then
  call('HSET', USE, 'of:' .. id, tenant)
  call('HINCRBY', USE, 'count:' .. tenant, 1)
end
return 1
