-- @include gateway_clock
-- Common part of the webhook scripts: six keys (WebhookNames.shared() in webhook_messages.py), and ARGV[1], the limits:
-- lease_ms, outstanding, remember_ms, dead_cap, dead_ttl_ms, and for tests now_ms. No key is computed at run time.
local call, GROUP = redis.call, 'deliverers'
local DUE, LATER, MESSAGES, TRIES, ENDED, DEAD = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local cfg = cjson.decode(ARGV[1])

local function now_ms() return clock_ms(cfg.now_ms or '') end
local function whole(number) return string.format('%.0f', number) end

-- A full server refuses growing commands only until a script has written: scripts that end webhooks must still work.
local function open_for_writes() call('XACK', DUE, GROUP, '0-0') end

local function make_due(id) call('XADD', DUE, '*', 'id', id) end

-- End a webhook; its id is remembered for a while, so that the same event is not announced again.
local function forget(id, now)
  -- @guard webhooks: ended ones are remembered
  call('ZADD', ENDED, whole(now), id)
  -- @guard webhooks: what is remembered is bounded
  call('ZREMRANGEBYRANK', ENDED, 0, -10 * cfg.outstanding - 1)
  call('HDEL', MESSAGES, id)
  call('HDEL', TRIES, id, 'refused:' .. id, 'refuser:' .. id)
end

local function named(list, name)
  for i = 1, #list, 2 do if list[i] == name then return list[i + 1] end end
end

-- A deliverer that holds nothing and has taken nothing for a lease is gone, or is created again when it takes.
local function forget_silent(deliverer)
  local forgotten = 0
  for _, row in ipairs(call('XINFO', 'CONSUMERS', DUE, GROUP)) do
    local name = named(row, 'name')
    if forgotten < 100 and named(row, 'pending') == 0 and named(row, 'idle') >= cfg.lease_ms and name ~= deliverer then
      -- @guard webhook_take: who is gone is forgotten
      call('XGROUP', 'DELCONSUMER', DUE, GROUP, name)
      forgotten = forgotten + 1
    end
  end
end
