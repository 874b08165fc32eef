-- @include keys
-- Record of a request between its attempts: '<attempts>[ <worker>…]', with the workers that it was lost with.
local MOST_WORKERS_NAMED = 16

local function tries_of(lane, id) return call('HGET', TRIES, tries_field(lane, id)) or '' end
local function attempts_in(tries) return tonumber(string.match(tries or '', '^%d+')) or 0 end

-- List of the workers that `tries` names, and of the one that it was lost with just now, if not nil.
local function workers_lost(tries, worker)
  local names = {}
  for name in string.gmatch(string.match(tries, ' .*') or '', '%S+') do names[#names + 1] = name end
  names[#names + 1] = worker
  -- @guard tries: so many names and no more
  if #names > MOST_WORKERS_NAMED then table.remove(names, 1) end
  return names
end

-- worker: nil if the attempt failed and its worker is alive.
local function remember(lane, id, attempts, worker)
  local names = workers_lost(tries_of(lane, id), worker)
  call('HSET', TRIES, tries_field(lane, id), table.concat({tostring(attempts), unpack(names)}, ' '))
end
