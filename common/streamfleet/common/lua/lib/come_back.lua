-- @include finish
-- Entries that wait again, unless they must not run.

-- Count an entry that nobody held as staged. If its group was set back or created again (LANES remembers its position
-- then), it has been counted already.
local function count_staged(lane, id, fields)
  local again = given_id(call('HGET', LANES, 'again:' .. LANE_NAMES[lane]))
  if again and encode_id(id) <= encode_id(again) or HOOKS.waits(lane, id, fields) then return end
  count('staged')
end

-- Returns the status and the error of an entry that must not run; nothing for one that may.
local function unfit(bytes, deadline)
  if deadline and deadline <= now_ms() then return 'expired', deadline_error('while the request was queued') end
  if bytes > cfg.max_entry_bytes then
    local message = string.format('the body of the request is %d bytes with its envelope; at most %d are allowed', bytes, cfg.max_entry_bytes)
    return 'failed', openai_error(message, 'invalid_request_error', 'body', 'request_too_large')
  end
end

-- Ends an entry that must not run. Returns its size, and true if it was ended.
local function end_unfit(lane, id, fields)
  local bytes, deadline = skim_entry(lane, id, fields)
  local status, why = unfit(bytes, deadline)
  -- @guard unfit: what may run is not ended
  if not status then return bytes, false end
  local entry = read_entry(lane, id, fields)
  if answered(entry.id) then
    discard_duplicate(lane, id, entry)
  else
    local attempts, read = attempts_in(attempts_record(lane, id)), milliseconds(entry.named.deadline)
    if status == 'expired' and read and read < 978307200000 then
      local said = string.format('it was read as %.0f, before the year 2001: epoch milliseconds are meant, not seconds', read)
      why = deadline_error('while the request was queued: ' .. said)
    end
    end_with_dead_letter(lane, id, fields, entry, {status = status, attempts = attempts, error = why})
  end
  return bytes, true
end

-- Makes an entry ready, or ends it if it must not run: the housekeeping examines only ranks that the clock has yet to
-- reach. Returns its size, 1 if it was not ready before and is now, and 1 if it has ended.
local function come_back(lane, id, fields)
  local bytes, ended = end_unfit(lane, id, fields)
  if ended then return bytes, 0, 1 end
  local _, ready = make_ready(lane, id, fields)
  return bytes, ready, 0
end
