-- @include result
-- @include forget
-- @include hooks
-- Ends requests: the status is written once, counted once, notified once, and only then is the entry removed.
local counted = {}

local function count(name) counted[name] = (counted[name] or 0) + 1 end

local function write_counts()
  for name, n in pairs(counted) do call('HINCRBY', COUNTS, name, n) end
  -- @guard hooks: what policies have changed is written
  HOOKS.write_changes()
end

-- `late`: as the hook `ended` takes it.
local function remove_entries(lane, ids, late)
  -- @guard remove: the pending row goes
  call('XACK', lane_key(lane), GROUP, unpack(ids))
  -- @guard remove: the entry goes
  call('XDEL', lane_key(lane), unpack(ids))
  forget_entries(lane, ids)
  -- @guard tenants: nothing is left of a charge when its entry is removed
  HOOKS.ended(lane, ids, late)
end

local function remove_entry(lane, id, late) remove_entries(lane, {id}, late) end

-- Dead letters are bounded in bytes without reading any: DEAD_PARTS counts the bytes ever written, and keeps the first
-- letter of each part of DEAD_PART bytes. At the start of a part, the letters before the part that is a whole cap ago
-- are deleted.
local function bound_dead_bytes(id, bytes)
  local DEAD_PART, DEAD_PARTS = 16777216, KEYS[SHARED - 5]
  local total = redis.pcall('HINCRBY', DEAD_PARTS, 'bytes', bytes)
  if type(total) ~= 'number' then return end   -- overwritten by hand: then only the number of letters is bounded
  local part = math.floor(total / DEAD_PART)
  if part == math.floor((total - bytes) / DEAD_PART) then return end
  call('HSET', DEAD_PARTS, part, id)
  local from = math.min(tonumber(call('HGET', DEAD_PARTS, 'from')) or part, part)
  local past, oldest = math.min(part - math.ceil(cfg.dead_bytes / DEAD_PART), from + 1000), nil   -- more: the next part
  for number = from, past do
    oldest = call('HGET', DEAD_PARTS, number) or oldest
    call('HDEL', DEAD_PARTS, number)
  end
  call('HSET', DEAD_PARTS, 'from', string.format('%.0f', math.max(from, past + 1)))
  -- @guard dead letters: bounded in bytes
  if oldest then call('XTRIM', DEAD, 'MINID', oldest) end
end

-- Writes the original fields too; those larger than any valid entry are cut, because such an entry can never run. A
-- name that begins with '_' gets another '_', so that nobody can forge one of our fields.
local function write_dead_letter(lane, id, fields, letter)
  local args = {DEAD, 'MAXLEN', '~', cfg.dead_cap, '*', '_id', letter.request_id, '_status', letter.status,
    '_error', letter.error, '_entry', entry_name(lane, id), '_attempts', tostring(letter.attempts)}
  if letter.workers and #letter.workers > 0 then
    args[#args + 1] = '_workers'
    args[#args + 1] = table.concat(letter.workers, ' ')
  end
  local room = cfg.max_entry_bytes
  for i = 1, math.min(#fields, 512), 2 do
    local name = string.sub(fields[i], 1, 256)
    args[#args + 1] = string.sub(name, 1, 1) == '_' and '_' .. name or name
    local kept = string.sub(fields[i + 1], 1, math.max(0, room))
    room = room - #kept
    args[#args + 1] = kept
    if #kept < #fields[i + 1] then args[#args + 1] = '_truncated'; args[#args + 1] = tostring(#fields[i + 1]) end
  end
  local written, bytes = tell(unpack(args)), 0
  for i = 6, #args do bytes = bytes + #args[i] end
  if written then bound_dead_bytes(written, bytes) end
end

-- Ends an entry whose id is another request's: that one's result is not its answer. `attempts`: nil if it did not run.
local function end_reused(lane, id, entry, other, attempts)
  local name = entry_name(lane, id)
  local message = string.format("the id '%s' is that of another request, %s, with another body or endpoint: " ..
    'this one, %s, ends without a result', entry.id, other, name)
  -- @guard reused: its caller is told, and not of the other request's answer
  if entry.reply then tell_reply(entry.reply, entry.id, 'id_reused', {'entry', name, 'status', 'id_reused'}, 4) end
  -- @guard reused: a dead letter names both
  write_dead_letter(lane, id, entry.fields, {request_id = entry.id, status = 'failed',
    attempts = attempts or attempts_in(attempts_record(lane, id)),
    error = openai_error(message, 'invalid_request_error', 'id', 'id_reused')})
  count('id_reused')
  remove_entry(lane, id)
end

-- End a request that no worker ends: expired, oversized or given up; the caller has seen that it has no result yet. The
-- result's key is computed here, so publishing comes before removing: if a migrating cluster slot refuses the write,
-- the entry is still there. Returns true, or false if its id is another request's.
local function end_with_dead_letter(lane, id, fields, entry, letter)
  local name, read = entry_name(lane, id), streamed(entry)
  local other = other_request(entry.id, name, entry.reply, entry, cfg.result_ttl_ms)
  -- @guard reused: nothing is published under another request's id
  if other then end_reused(lane, id, entry, other, letter.attempts); return false end
  local given = {error = letter.error, attempt = tostring(letter.attempts), streamed = read and '0'}
  publish(entry.id, letter.status, describe(given, lane, id, entry), entry.reply, read and {})
  letter.request_id = entry.id
  -- @guard end with dead letter: a dead letter is written
  write_dead_letter(lane, id, fields, letter)
  count(letter.status)
  remove_entry(lane, id, letter.status == 'expired' and (entry.named.tenant or '') or nil)
  return true
end

-- Remove an entry whose result exists already. A result without an entry is a cancellation: it belongs to this entry, so
-- its usual expiry starts now. Any other entry of the same id is a duplicate, or another request that has no result.
-- `run`: fields about the run that the cancellation ended, and `attempt` its number; nil if nothing ran.
local function discard_duplicate(lane, id, entry, run, attempt)
  local name = entry_name(lane, id)
  local other = other_request(entry.id, name, entry.reply, entry.digest or entry)
  -- @guard reused: another request's result is no answer
  if other then return end_reused(lane, id, entry, other, attempt) end
  local result = call('HMGET', result_key(entry.id), 'status', 'entry', 'streamed')
  if result[2] then
    count('duplicate')
  else
    -- @guard reused: what was cancelled before it came is known by its body
    other_request(entry.id, name, entry.reply, entry.digest or entry, cfg.result_ttl_ms)
    add_to_result(entry.id, describe(run or {}, lane, id, entry))
    count(result[1])
  end
  -- @guard tokens: who was not told is made up for
  if streamed(entry) and not result[3] then end_untold_tokens(entry.id, result[1]) end
  -- @guard discard duplicate: an entry's own reply name is told
  notify(entry.reply, entry.id, result[1])
  remove_entry(lane, id)
end
