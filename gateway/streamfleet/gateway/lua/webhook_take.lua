-- @include webhooks
-- Take webhooks to deliver: those whose deliverer went silent, then those that are due. Before that, delayed ones whose
-- time has come become due; after it, old dead letters are deleted, and deliverers that are gone are forgotten.
-- KEYS: shared by the webhook scripts. ARGV: 1 limits; 2 deliverer; 3 most webhooks to take, 0 or more.
-- Returns now (ms); ms until the next one is due, or -1; number of outstanding ones; the newest stream id of due ones;
-- and of each taken one: stream id, id, attempt, message or '', how often settings of gateways forbade its address.
local GIVE_WAY_MS = 1000   -- as often each deliverer looks
local deliverer, wanted, now = ARGV[2], tonumber(ARGV[3]), now_ms()

open_for_writes()
local known = redis.pcall('XPENDING', DUE, GROUP)
if known.err then
  if not string.find(known.err, 'NOGROUP', 1, true) then return redis.error_reply(known.err) end
  call('XGROUP', 'CREATE', DUE, GROUP, '0', 'MKSTREAM')
end

local due = call('ZRANGEBYSCORE', LATER, '-inf', whole(now), 'WITHSCORES', 'LIMIT', 0, 1000)
for i = 1, #due, 2 do
  -- @guard webhook_take: who forbade it lets others go first
  if tonumber(due[i + 1]) <= now - GIVE_WAY_MS or call('HGET', TRIES, 'refuser:' .. due[i]) ~= deliverer then
    make_due(due[i])
    call('ZREM', LATER, due[i])
  end
end

local taken = {}
local function take(entries)
  for _, entry in ipairs(entries) do
    local id = entry[2] and entry[2][2]   -- an entry that was deleted by hand has no fields
    local message = id and call('HGET', MESSAGES, id)
    if message then
      local refusals = tonumber(call('HGET', TRIES, 'refused:' .. id)) or 0
      taken[#taken + 1] = {entry[1], id, call('HINCRBY', TRIES, id, 1), message, refusals}
    else
      call('XACK', DUE, GROUP, entry[1])
      call('XDEL', DUE, entry[1])
    end
  end
end

if wanted > 0 then
  local claim = {'XCLAIM', DUE, GROUP, deliverer, 0}
  for _, row in ipairs(call('XPENDING', DUE, GROUP, 'IDLE', whole(cfg.lease_ms), '-', '+', wanted)) do
    claim[#claim + 1] = row[1]
  end
  if #claim > 5 then take(call(unpack(claim))) end
end
if #taken < wanted then
  local read = call('XREADGROUP', 'GROUP', GROUP, deliverer, 'COUNT', wanted - #taken, 'STREAMS', DUE, '>')
  if read then take(read[1][2]) end
end

forget_silent(deliverer)
-- @guard webhook_take: not for ever
call('ZREMRANGEBYSCORE', ENDED, '-inf', whole(now - cfg.remember_ms))
local oldest = whole(math.max(0, now - cfg.dead_ttl_ms))
-- @guard webhook_take: dead ones have an end of life
if call('XTRIM', DEAD, 'MINID', '~', oldest, 'LIMIT', 1000) == 0 then call('XTRIM', DEAD, 'MINID', '=', oldest) end
local first = call('ZRANGEBYSCORE', LATER, '(' .. whole(now), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
local last = named(call('XINFO', 'STREAM', DUE), 'last-generated-id')
local due_in = first[2] and whole(math.max(0, first[2] - now)) or '-1'
return {whole(now), due_in, call('HLEN', MESSAGES), last, taken}
