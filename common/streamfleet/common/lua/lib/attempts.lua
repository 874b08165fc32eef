-- @include keys
-- Record of a request between its attempts: '<attempts>[ <worker>…]', with the last 16 workers that it was lost with.

local function attempts_record(lane, id) return call('HGET', ATTEMPTS, entry_field(lane, id)) or '' end
local function attempts_in(record) return tonumber(string.match(record or '', '^%d+')) or 0 end

-- List of the workers that a record names, and of the one that it was lost with just now, if not nil.
local function workers_lost(record, worker)
  local names = {}
  for name in string.gmatch(string.match(record, ' .*') or '', '%S+') do names[#names + 1] = name end
  names[#names + 1] = worker
  -- @guard attempts: so many names and no more
  if #names > 16 then table.remove(names, 1) end
  return names
end

-- worker: nil if the attempt failed and its worker is alive.
local function remember(lane, id, attempts, worker)
  local names = workers_lost(attempts_record(lane, id), worker)
  attempts_known = nil
  call('HSET', ATTEMPTS, entry_field(lane, id), table.concat({tostring(attempts), unpack(names)}, ' '))
end

-- Attempt number of an entry that this worker holds, else nil.
local function held_attempt(lane, id, worker)
  local row = call('XPENDING', lane_key(lane), GROUP, id, id, 1, worker)[1]
  return row and row[4]
end
