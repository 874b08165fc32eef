-- @include fence
-- @include interrupt
-- @include lease
-- Renew leases, and report the state of each.
-- KEYS: shared. ARGV: 1 configuration; 2 worker; 3 JSON [[lane, stream id, attempt, request id, run, bytes]…], the
--   last two of output that was kept, or without them.
-- Returns for each: 1 renewed; 2 renewed, but the id has a result (cancelled, or answered elsewhere); 0 lost.
-- An entry that was XDELed by hand is lost: from Redis 7.0 on its pending row goes here, and nothing else would count it. What
-- was charged for it is given back by the upkeep.
-- These raise WRONGTYPE before any write: an entry that has vanished is taken out of them too.
-- @guard types: tries of another type is noticed before a write of renew
some_attempts()
-- @guard types: counts of another type is noticed before a write of renew
call('HLEN', COUNTS)
-- @guard types: lanes of another type is noticed before a write of renew
call('HLEN', LANES)
open_for_writes()
local worker, leases = ARGV[2], cjson.decode(ARGV[3])
local holds, codes, ids = fence(leases, worker, #leases), {nil}, {nil, nil, nil, nil}
for i, lease in ipairs(leases) do
  local lane, id = lease[1], lease[2]
  codes[i] = 0
  if holds(lane, id, lease[3]) then
    ids[lane] = ids[lane] or {nil}
    -- @guard renew: kept output counts if the lease does
    if lease[5] then note_interruption(lane, id, false, lease[5], lease[6]) end
    table.insert(ids[lane], id)
    codes[i] = 1
  else
    refuse_kept(lane, id, lease[5])
  end
end
for lane, some in pairs(ids) do
  local there, gone = stamp(lane, worker, some)
  ids[lane] = there   -- {stream id = true} from here on
  if gone[1] then
    -- @guard renew: what the queue remembers of an entry that has vanished goes
    forget_entries(lane, gone)
    -- @guard renew: an entry that has vanished is counted
    call('HINCRBY', COUNTS, 'vanished', #gone)
  end
end
for i, lease in ipairs(leases) do
  if codes[i] == 1 then
    codes[i] = ids[lease[1]][lease[2]] and (answered(lease[4]) and 2 or 1) or 0
  end
end
return codes
