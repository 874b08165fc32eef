-- @include enqueued
-- @include interrupted
-- @include attempts
-- Forgets the queue's own records of entries that are gone. A policy learns of their end by the hook `ended`.
local function forget_entries(lane, ids)
  for _, id in ipairs(ids) do
    -- @guard entry: the time of staging goes with its entry
    if may_be_ahead(lane, id) then call_if_typed('HDEL', ENTRIES, ahead_field(lane, id)) end
  end
  -- @guard interrupted: forgotten with the entry
  forget_interruptions(lane, ids)
  if not some_attempts() then return end
  local fields = {}
  for i, id in ipairs(ids) do fields[i] = entry_field(lane, id) end
  -- @guard remove: attempts are forgotten
  call('HDEL', ATTEMPTS, unpack(fields))
end
