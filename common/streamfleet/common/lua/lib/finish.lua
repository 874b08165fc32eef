-- @include entry
-- How a request ends: the status is written once, counted once, notified once, and only then is its entry removed.
local counted = {}

local function count(name) counted[name] = (counted[name] or 0) + 1 end

local function write_counts()
  for name, n in pairs(counted) do call('HINCRBY', COUNTS, name, n) end
end

local function remove_entry(lane, id)
  call('XACK', lane_key(lane), GROUP, id)
  call('XDEL', lane_key(lane), id)
  call('HDEL', TRIES, tries_field(lane, id))
end

local function notify(reply, request_id, status)
  if not reply then return end
  local key = cfg.prefix .. 'reply:' .. reply
  call('XADD', key, 'MAXLEN', '~', cfg.reply_cap, '*', 'id', request_id, 'status', status)
  call('PEXPIRE', key, cfg.result_ttl_ms)
end

-- The one place where a terminal status is written. False: another writer was first, nothing was written.
local function publish(request_id, status, values, reply)
  local key = result_key(request_id)
  if call('HSETNX', key, 'status', status) == 0 then return false end
  if reply then values[#values + 1] = 'reply'; values[#values + 1] = reply end
  call('HSET', key, unpack(values))
  call('PEXPIRE', key, cfg.result_ttl_ms)
  notify(reply, request_id, status)
  return true
end

local function openai_error(message, param, code)
  return cjson.encode({error = {message = message, type = 'invalid_request_error', param = param or cjson.null, code = code}})
end

-- Original fields go along, those larger than any valid entry cut short: such a one can never run.
local function write_dead_letter(lane, id, fields, letter)
  local args = {'XADD', DEAD, 'MAXLEN', '~', cfg.dead_cap, '*', '_id', letter.request_id, '_status', letter.status,
    '_error', letter.error, '_entry', entry_name(lane, id), '_attempts', tostring(letter.attempts or 0)}
  local room = cfg.max_entry_bytes
  for i = 1, math.min(#fields, 512), 2 do
    args[#args + 1] = string.sub(fields[i], 1, 256)
    local kept = string.sub(fields[i + 1], 1, math.max(0, room))
    room = room - #kept
    args[#args + 1] = kept
    if #kept < #fields[i + 1] then args[#args + 1] = '_truncated'; args[#args + 1] = tostring(#fields[i + 1]) end
  end
  call(unpack(args))
end

-- End a request that no worker ends: expired, oversized or given up. Its result's key is computed here, so publishing
-- comes before removing: if a migrating cluster slot refuses the write, the entry is still there.
local function bury(lane, id, fields, entry, letter)
  local now = string.format('%.0f', now_ms())
  local written = publish(entry.id, letter.status, {'error', letter.error, 'lane', LANE_NAMES[lane],
    'entry', entry_name(lane, id), 'attempt', tostring(letter.attempts or 0), 'finished_ms', now}, entry.reply)
  if written then
    letter.request_id = entry.id
    write_dead_letter(lane, id, fields, letter)
    count(letter.status)
  else
    count('duplicate')
  end
  remove_entry(lane, id)
end

-- Remove an entry whose result already stands. A result without an entry is a cancellation: this entry is the one
-- that it ended. Any other entry of the same id was a duplicate.
local function settle(lane, id, entry)
  local key = result_key(entry.id)
  local result = call('HMGET', key, 'status', 'entry', 'reply')
  if result[2] then
    count('duplicate')
  else
    call('HSET', key, 'entry', entry_name(lane, id), 'lane', LANE_NAMES[lane])
    count(result[1])
  end
  if entry.reply and entry.reply ~= result[3] then notify(entry.reply, entry.id, result[1]) end
  remove_entry(lane, id)
end

local function answered(request_id) return call('EXISTS', result_key(request_id)) == 1 end
