-- @include lane_limits
-- Bounds the requests that one tenant may have waiting in a lane while others use the queue.
-- A tenant's waiting requests are in its ready sets (lua/order/order.lua) or not staged yet. `arrivals` is a hash
-- of the requests that were not staged: for each '<lane><tenant>' it has groups, oldest first, each written as '<last stream
-- id> <number> <bytes>;'. A group counts until all of it is staged. The fields `last` and `other` have the time and the
-- digest of the two tenants that enqueued last, which is enough to know if there is another one. They are digests because
-- producers may read these fields, but may not list tenants.
local HOUR_MS, MINUTE_MS, MOST_TENANTS, MOST_FIELDS, LOOKED_AT, GROUPS = 3600000, 60000, 2000, 8192, 64, 16
local ARRIVALS, LANES, SERVED, DELAYED = unpack(KEYS, 2 * lanes + 1, 2 * lanes + 4)
local most, most_bytes = math.max(1, math.floor(limit * percent / 100)), limit_bytes * percent / 100
local lanes_staged, tenants, changed = {}, {}, {}   -- by lane; by lane and tenant; fields of `arrivals` to write
local labelled   -- by lane, how many wait with a label; nil if not asked
local last, other

-- Keys of another type were written by hand: they count for nothing.
local function number(reply) return type(reply) == 'number' and reply or 0 end
local function text(reply) return type(reply) == 'string' and reply end

local function number_labelled(lane)
  if not labelled then
    labelled = {}
    for t, b, h, held in string.gmatch(text(redis.pcall('HGET', LANES, 'labelled')) or '', '(%d+) (%d+) (%d+) (%d+);') do
      labelled[#labelled + 1] = t + b + h + held
    end
  end
  return labelled[lane] or 0
end

-- Returns the last stream id of a lane that is staged, and the number of its entries that are ready or run.
local function staged(lane)
  if not lanes_staged[lane] then
    local group, rows = {pending = 0}, redis.pcall('XINFO', 'GROUPS', KEYS[lane])
    for _, row in ipairs(rows.err and {} or rows) do
      if row[2] == 'workers' then
        for i = 1, #row, 2 do group[row[i]] = row[i + 1] end
      end
    end
    local ms, seq = string.match(group['last-delivered-id'] or '0-0', '^(%d+)-(%d+)$')
    local ready = number(redis.pcall('ZCARD', KEYS[lanes + lane])) + number_labelled(lane)
    lanes_staged[lane] = {ms = tonumber(ms), seq = tonumber(seq), held = group.pending + ready}
  end
  return lanes_staged[lane]
end

local function is_staged(lane, id)
  local upto, ms, seq = staged(lane), string.match(id, '^(%d+)-(%d+)$')
  return upto.ms > tonumber(ms) or upto.ms == tonumber(ms) and upto.seq >= tonumber(seq)
end

local function unstaged(lane)
  length[lane] = length[lane] or call('XLEN', KEYS[lane])
  return math.max(0, length[lane] - staged(lane).held)
end

-- Returns true if the field is there, and what is known.
local function read_arrivals(lane, name)
  local field = lane .. name
  if tenants[field] then return true, tenants[field] end
  local found = redis.pcall('HMGET', ARRIVALS, 'last', 'other', field)
  if found.err then return true, false end   -- it was written by hand
  if not last then last, other = found[1] or '', found[2] or '' end
  local groups = {}
  for id, some, size in string.gmatch(found[3] or '', '(%d+%-%d+) (%d+) (%d+);') do
    groups[#groups + 1] = {id = id, number = tonumber(some), size = tonumber(size)}
  end
  tenants[field] = {field = field, lane = lane, name = name, groups = groups}
  return found[3] and true, tenants[field]
end

-- Returns the arrivals of a tenant in a lane; false if `arrivals` has another type. Odd names, and those beyond a number of tenants,
-- are one tenant, as in its turns.
local function arrivals_of(lane, tenant)
  local there, known = read_arrivals(lane, (#tenant > 256 or string.find(tenant, '%c')) and 'other' or tenant)
  -- @guard enqueue: what is known of tenants is bounded
  if not there and call('HLEN', ARRIVALS) >= MOST_FIELDS then
    local left = -number(redis.pcall('ZCARD', DELAYED))
    for each = 1, lanes do left = left + unstaged(each) end
    if left <= 0 then
      call('DEL', ARRIVALS)
      changed.last, changed.other = last, other
    else
      known = select(2, read_arrivals(lane, 'other'))
    end
  end
  return known
end

-- A tenant is there at this time, epoch ms. Returns true if another one was within the hour.
local function see(name, now)
  local ms, digest = string.match(last, '^(%d+) (.*)$')
  name = string.sub(redis.sha1hex(name), 1, 16)
  if digest ~= name or now - ms >= MINUTE_MS then
    if digest ~= name then other = last end
    last = string.format('%.0f ', now) .. name
    changed.last, changed.other = last, other
  end
  return now - tonumber(string.match(other, '^%d+') or -math.huge) < HOUR_MS   -- also if its stream id was ahead of the clock
end

local function others_than(name)
  local time = call('TIME')
  return see(name, time[1] * 1000 + math.floor(time[2] / 1000))
end

local function drop_staged(known)
  -- @guard enqueue: what is staged counts once
  while known.groups[1] and is_staged(known.lane, known.groups[1].id) do table.remove(known.groups, 1) end
end

-- The ready sets of a tenant, and how many are in them.
local function ready_of(lane, name)
  local sets, ready = {}, 0
  for i, kind in ipairs({':t:', ':th:'}) do
    local key = KEYS[lanes + lane] .. kind .. name
    sets[i] = {key, number(redis.pcall('ZCARD', key))}
    ready = ready + sets[i][2]
  end
  return ready, sets
end

-- Number of requests of a tenant that wait in a lane, bytes of those that are not ready, and its ready sets.
local function waiting_of(known)
  local lane, name = known.lane, known.name
  local fresh, size, left = 0, 0, unstaged(lane)
  drop_staged(known)
  for _, group in ipairs(known.groups) do fresh, size = fresh + group.number, size + group.size end
  if fresh > left then fresh, size = left, size * left / fresh end
  local ready, sets = ready_of(lane, name)
  if ready == 0 and not text(redis.pcall('HGET', SERVED, 't|' .. name))
      and (tonumber(text(redis.pcall('HGET', SERVED, 'known')) or nil) or 0) >= MOST_TENANTS then
    ready, sets = ready_of(lane, 'other')
  end
  return fresh + ready, size, sets
end

-- About how many bytes the bodies have that a tenant has ready. A user that may not look at them counts none.
local function ready_bytes(sets)
  local all = 0
  for _, set in ipairs(sets) do
    local key, ready = unpack(set)
    local looked, sum = math.min(ready, LOOKED_AT), 0
    if redis.acl_check_cmd and not redis.acl_check_cmd('ZRANGE', key, 0, 0) then return 0 end
    for i = 0, looked - 1 do
      local at = math.floor(i * ready / looked)
      sum = sum + (tonumber(string.match(call('ZRANGE', key, at, at)[1] or '', '^%S+ (%d+) ')) or 0)
    end
    if looked > 0 then all = all + sum / looked * ready end
  end
  return all
end

-- Returns nil if a tenant may have one more request waiting in a lane. Else its share is used: returns 'bytes' if by its
-- bytes, or '' if by its number of requests, as the script's reply says.
local function over_share(known, size)
  local lane = known.lane
  if known.full then return '' end
  if length[lane] < most and (size < LARGE or bytes[lane] + size <= most_bytes) then return nil end
  -- @guard enqueue: alone, a tenant has the whole lane
  if not others_than(known.name) then return nil end
  local all, fresh_bytes, sets = waiting_of(known)
  -- @guard enqueue: a tenant has a share of a lane
  if all >= most then known.full = true; return '' end
  if size < LARGE or bytes[lane] + size <= most_bytes or all == 0 then return nil end
  -- @guard enqueue: a tenant has a share of a lane's bytes
  if fresh_bytes + ready_bytes(sets) + size > most_bytes then return 'bytes' end
end

-- An entry of a tenant was added.
local function arrive(known, id, size)
  local groups = known.groups
  if #groups > 0 and groups[#groups].number >= most / GROUPS then drop_staged(known) end
  local newest = groups[#groups]
  if not newest or newest.number >= most / GROUPS and #groups < 2 * GROUPS then
    newest = {number = 0, size = 0}
    groups[#groups + 1] = newest
  end
  newest.id, newest.number, newest.size = id, newest.number + 1, newest.size + size
  see(known.name, tonumber(string.match(id, '^%d+')))
  changed[known.field] = known
end

local function write_arrivals()
  local list = {}
  for field, value in pairs(changed) do
    if type(value) == 'table' then
      local parts = {}
      for i, group in ipairs(value.groups) do parts[i] = string.format('%s %d %.0f;', group.id, group.number, group.size) end
      value = table.concat(parts)
    end
    list[#list + 1], list[#list + 2] = field, value
  end
  for i = 1, #list, 400 do call('HSET', ARRIVALS, unpack(list, i, math.min(i + 399, #list))) end
end

return {of = arrivals_of, over_share = over_share, add = arrive, write = write_arrivals}
