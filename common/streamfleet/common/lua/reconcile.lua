-- @include examine
-- Examine entries, and mend what is known of them: so the sets of a lane are made anew, a bounded part in each call, while pulls run
-- beside. What is known of an entry that is gone is forgotten.
-- KEYS: shared. ARGV: 1 configuration; 2 '1' to mend, '0' to look only; 3 lane; 4 'begin' to delete its sets, 'go on' to go on with
--   what was begun, 'names' to examine entries by name, else the id to continue behind, or ''; 5 most entries; 6 most bytes of them,
--   because looking copies them; then, to begin, what the keys of its sets have behind the ready set's, where the caller knows more
--   than the names that are known here; or names of entries, '<lane number>|<stream id>', as keys have them.
-- Returns {where to continue: an id, the number of names that were examined, or '' at the end; findings as a flat list of kind and
--   name}.
local begun, how, reached = tonumber(ARGV[3]), ARGV[4]
local MENDING = 'mending:' .. (LANE_NAMES[begun] or '')

local function examine_names()
  local bytes = 0
  for i = 7, #ARGV do
    -- @guard reconcile: names in bounded calls
    if bytes >= tonumber(ARGV[6]) then return i - 7 end
    local lane, id = lane_and_id(ARGV[i])
    local fields = lane and fetch_fields(lane, id)
    for _, text in ipairs(fields or {}) do bytes = bytes + #text end
    if lane then examine(lane, id, fields) else note('odd', ARGV[i]) end
    if mend and not lane then forget(nil, nil, ARGV[i]) end
  end
  return ''
end

if how == 'begin' then
  reached = '0-0'
  -- @guard reconcile: what stands in a set by mistake goes
  if sets then sets.delete(begun, 7) else call('UNLINK', ready_key(begun)) end
  call('HSET', LANES, MENDING, '0-0 ' .. last[begun])
elseif how == 'names' then
  reached = examine_names()
else
  local from, till = how, last[begun]
  if how == 'go on' then from, till = string.match(call('HGET', LANES, MENDING) or '', '^(%d+%-%d+) (%d+%-%d+)$') end
  local function look(id, fields) return examine(begun, id, fields) end
  reached = from and groups[begun] and read_lane(begun, from, till, tonumber(ARGV[5]), tonumber(ARGV[6]), look) or ''
  -- @guard reconcile: the next call goes on where this one ended
  if how == 'go on' then call('HSET', LANES, MENDING, reached .. ' ' .. (till or '')) end
  if how == 'go on' and reached == '' then call('HDEL', LANES, MENDING) end
end
if mend then write_counts() end
-- @guard reconcile: somebody is woken
if woken then wake(woken) end
return {reached, findings}
