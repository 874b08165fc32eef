-- @include finish
-- Cancel a request, wherever it is: its result is written now; a queued entry is dropped when its turn comes, a running
-- one by its worker, which reads the stream of cancels.
-- KEYS: shared; its result; its reply stream (its result again when it has none); its tokens.
-- ARGV: 1 configuration; 2 request id; 3 reply name or ''; 4 error JSON; 5 its entry, <lane>:<stream id>, where known.
-- Returns 1 cancelled; 0 it had already ended.
local id, reply = ARGV[2], ARGV[3] ~= '' and ARGV[3] or nil

-- Whether it has readers: as its entry says; of one that cannot be found, only what was streamed already tells.
local function has_readers()
  local name, entry_id = string.match(ARGV[5], '^(%a+):(%d+%-%d+)$')
  for lane = 1, name and LANE_COUNT or 0 do
    if LANE_NAMES[lane] == name then
      local found, fields = pcall(fetch_fields, lane, entry_id)   -- the record may be anybody's work
      local entry = found and fields and read_entry(lane, entry_id, fields)
      if entry and entry.id == id then return streamed(entry) end
    end
  end
  return redis.pcall('EXISTS', KEYS[21]) == 1
end

open_for_writes()   -- first: who may not write results has nothing else refused
local tokens = has_readers() and {} or nil
local values = {'error', ARGV[4], 'http_status', HTTP_STATUS.cancelled, 'finished_ms', string.format('%.0f', now_ms())}
if tokens then values[#values + 1], values[#values + 2] = 'streamed', '0' end
if not publish(id, 'cancelled', values, reply, nil, nil, tokens) then return 0 end
tell(CANCELS, 'MAXLEN', '~', 10000, '*', 'id', id)
return 1
