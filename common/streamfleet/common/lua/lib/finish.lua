-- @include entry
-- @include tries
-- Ends requests: the status is written once, counted once, notified once, and only then is the entry removed.
local counted, told = {}, {}

local function count(name) counted[name] = (counted[name] or 0) + 1 end

-- Count an entry that nobody held as staged. If its group was set back or created again (SCHED remembers its position
-- then), it has been counted already.
local function count_staged(lane, id)
  local member, again = encode_id(id), call('HGET', SCHED, 'again:' .. lane)
  if call('ZSCORE', ready_key(lane), member) or (again and member <= again) then return end
  count('staged')
end

local function write_counts()
  for name, n in pairs(counted) do call('HINCRBY', COUNTS, name, n) end
end

local function remove_entries(lane, ids)
  call('XACK', lane_key(lane), GROUP, unpack(ids))
  call('XDEL', lane_key(lane), unpack(ids))
  for _, id in ipairs(ids) do
    if may_be_ahead(lane, id) then call('HDEL', SCHED, ahead_field(lane, id)) end
  end
  if call('HLEN', TRIES) == 0 then return end
  local fields = {}
  for i, id in ipairs(ids) do fields[i] = tries_field(lane, id) end
  call('HDEL', TRIES, unpack(fields))
end

local function remove_entry(lane, id) remove_entries(lane, {id}) end

local function tell_reply(reply, request_id, status)
  local key = cfg.prefix .. 'reply:' .. reply
  tell(key, 'MAXLEN', '~', cfg.reply_cap, '*', 'id', request_id, 'status', status)
  if not told[key] then call('PEXPIRE', key, cfg.result_ttl_ms) end
  told[key] = true
end

-- Notify each name once, even if several entries of the id name it; the result remembers the notified names.
local function notify(reply, request_id, status)
  if not reply or call('HMGET', result_key(request_id), 'notified:' .. reply)[1] == '1' then return end
  tell_reply(reply, request_id, status)
  call('HSET', result_key(request_id), 'notified:' .. reply, '1')   -- last: a notification refused above is sent later
end

-- Writes the last entry of a streamed request's tokens, in one step with its result; `words`: more fields of it. A
-- refusal does not delay the end: readers also look at the result.
local function end_tokens(request_id, status, words)
  local key = tokens_key(request_id)
  local added = redis.pcall('XADD', key, '*', 'end', status, unpack(words))
  if type(added) == 'string' then redis.pcall('PEXPIRE', key, cfg.result_ttl_ms) end
end

-- Refused while a cluster slot moves: then the record stays longer.
local function keep_record(request_id, life) redis.pcall('PEXPIRE', record_key(request_id), life) end

-- The only place that writes a terminal status. Returns false if another writer was first, and nothing was written.
-- From here on the record of the id lives as long as the result: a record without a result belongs to a request that
-- has not ended. `n`: number of field-value pairs in `values`; nil for all. `new`: the caller has seen that there is no
-- result. `tokens`: fields, beside the status, of the last entry of a streamed request's tokens. `life`: expiry of the
-- result, ms; nil for the usual one.
local function publish(request_id, status, values, reply, n, new, tokens, life)
  local key = result_key(request_id)
  local first = new or call_if_typed('HSETNX', key, 'status', status)
  if not first then   -- written by hand: not a result
    call('PEXPIRE', key, 0)   -- workers may lack the right to DEL
    first = call('HSETNX', key, 'status', status)
  end
  if first == 0 then return false end
  keep_record(request_id, life or cfg.result_ttl_ms)
  local mark = reply and 'notified:' .. reply   -- a new result: no name has been notified yet
  n = n or #values
  values[n + 1], values[n + 2], values[n + 3], values[n + 4] = 'status', status, mark, mark and '1'
  call('HSET', key, unpack(values, 1, mark and n + 4 or n + 2))
  call('PEXPIRE', key, life or cfg.result_ttl_ms)
  if tokens then end_tokens(request_id, status, tokens) end
  if mark then
    local ok, refusal = pcall(tell_reply, reply, request_id, status)
    if not ok then
      call('HSET', key, mark, '0')   -- what was refused is told later
      error(refusal)
    end
  end
  return true
end

local function openai_error(message, kind, param, code)
  return cjson.encode({error = {message = message, type = kind, param = param or cjson.null, code = code}})
end

local function deadline_error(where)
  return openai_error('the deadline passed ' .. where, 'timeout', 'deadline', 'deadline_exceeded')
end

-- Fields of every result, whoever wrote it: the same names as a worker's (worker/complete.py).
local CARRIED = {'tenant', 'session', 'traceparent', 'meta'}
local HTTP_STATUS = {failed = 400, expired = 504, cancelled = 499, dead = 500}

local function describe(values, lane, id, entry, status)
  local pairs_ = {'lane', LANE_NAMES[lane], 'entry', entry_name(lane, id), 'enqueued_ms', string.format('%.0f', entry.enqueued)}
  if status then
    pairs_[#pairs_ + 1] = 'http_status'
    pairs_[#pairs_ + 1] = HTTP_STATUS[status]
  end
  for _, name in ipairs(CARRIED) do
    if entry.named[name] then
      pairs_[#pairs_ + 1] = name
      pairs_[#pairs_ + 1] = string.sub(entry.named[name], 1, 4096)
    end
  end
  for _, value in ipairs(pairs_) do values[#values + 1] = value end
  return values
end

-- Dead letters are bounded in bytes without reading any: SCHED counts the bytes ever written, and keeps the first
-- letter of each part of DEAD_PART bytes. At the start of a part, the letters before the part that is a whole cap ago
-- are deleted.
local DEAD_PART = 16777216

local function bound_dead_bytes(id, bytes)
  local total = redis.pcall('HINCRBY', SCHED, 'dead_bytes', bytes)
  if type(total) ~= 'number' then return end   -- overwritten by hand: then only the number of letters is bounded
  local part = math.floor(total / DEAD_PART)
  if part == math.floor((total - bytes) / DEAD_PART) then return end
  call('HSET', SCHED, 'dead:' .. part, id)
  local from = math.min(tonumber(call('HGET', SCHED, 'dead_from')) or part, part)
  local past, oldest = math.min(part - math.ceil(cfg.dead_bytes / DEAD_PART), from + 1000), nil   -- more: the next part
  for number = from, past do
    oldest = call('HGET', SCHED, 'dead:' .. number) or oldest
    call('HDEL', SCHED, 'dead:' .. number)
  end
  call('HSET', SCHED, 'dead_from', string.format('%.0f', math.max(from, past + 1)))
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

-- End a request that no worker ends: expired, oversized or given up; the caller has seen that it has no result yet. The
-- result's key is computed here, so publishing comes before removing: if a migrating cluster slot refuses the write,
-- the entry is still there.
local function bury(lane, id, fields, entry, letter)
  local now = string.format('%.0f', now_ms())
  local values = {'error', letter.error, 'attempt', tostring(letter.attempts), 'finished_ms', now}
  describe(values, lane, id, entry, letter.status)
  if streamed(entry) then values[#values + 1], values[#values + 2] = 'streamed', '0' end
  publish(entry.id, letter.status, values, entry.reply, nil, nil, streamed(entry) and {})
  letter.request_id = entry.id
  write_dead_letter(lane, id, fields, letter)
  count(letter.status)
  remove_entry(lane, id)
end

-- Remove an entry whose result exists already. A result without an entry is a cancellation: it belongs to this entry, so
-- its usual expiry starts now. Any other entry of the same id is a duplicate.
-- `run`: field-value pairs about the run that the cancellation ended; nil if nothing ran.
local function settle(lane, id, entry, run)
  local key = result_key(entry.id)
  local result = call('HMGET', key, 'status', 'entry', 'streamed')
  if result[2] then
    count('duplicate')
  else
    call('HSET', key, unpack(describe(run or {}, lane, id, entry)))
    call('PEXPIRE', key, cfg.result_ttl_ms)
    keep_record(entry.id, cfg.result_ttl_ms)
    count(result[1])
  end
  if streamed(entry) and not result[3] then   -- its writer did not know that there are readers
    call('HSET', key, 'streamed', '0')
    end_tokens(entry.id, result[1], {})
  end
  notify(entry.reply, entry.id, result[1])
  remove_entry(lane, id)
end

-- A key of another type, or a hash without a status, is not an answer: it was written by hand.
local function answered(request_id)
  return call_if_typed('HEXISTS', result_key(request_id), 'status') == 1
end

-- Ends an entry whose deadline has passed. Returns its size, and true if it was ended.
local function end_late(lane, id, fields)
  local bytes, deadline = skim_entry(lane, id, fields)
  if not deadline or deadline > now_ms() then return bytes, false end
  local entry = read_entry(lane, id, fields)
  if answered(entry.id) then
    settle(lane, id, entry)
  else
    bury(lane, id, fields, entry, {status = 'expired', attempts = attempts_in(tries_of(lane, id)),
      error = deadline_error('while the request was queued')})
  end
  return bytes, true
end

-- Makes an entry ready, or ends it if its deadline has passed meanwhile: the housekeeping examines only ranks that the
-- clock has yet to reach. Returns its size, 1 if it was not ready before and is now, and 1 if it has ended.
local function come_back(lane, id, fields)
  keep_enqueued_ms(lane, id)
  local bytes, ended = end_late(lane, id, fields)
  if ended then return bytes, 0, 1 end
  local _, ready = make_ready(lane, id, fields)
  return bytes, ready, 0
end
