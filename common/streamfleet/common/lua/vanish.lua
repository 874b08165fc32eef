-- @include result
-- @include forget
-- End requests whose entry is gone: they can never run, and callers may wait for their results. They are not counted as
-- dead: a missing entry counts as vanished.
-- KEYS: shared; then for each request its record, its result, its reply stream (its result again if it has none), and
--   its tokens.
-- ARGV: 1 configuration; 2 '1' to end them, '0' to look only; 3 most bytes of entries, because looking at one copies it;
--   then for each: request id, reply name or ''.
-- Returns for each examined one: 1 ended, or to be ended; 0 it has ended, or is in its lane, or has no such record.
if ARGV[2] == '1' then open_for_writes() end
local lane_of, bytes = {}, 0
for lane = 1, LANE_COUNT do lane_of[LANE_NAMES[lane]] = lane end

-- A lane that was deleted and created again may have given the entry's stream id to another request.
local function is_tracked(lane, id, request_id)
  if call('EXISTS', lane_key(lane)) == 0 then return false end
  local fields = fetch_fields(lane, id)
  if fields then
    local entry = read_entry(lane, id, fields)
    bytes = bytes + entry.bytes
    return entry.id == request_id
  end
  local pending = redis.pcall('XPENDING', lane_key(lane), GROUP, id, id, 1)   -- the group may be missing
  return not pending.err and pending[1]
end

local function vanish(request_id, reply, record, tokens)
  local name, id, recorded = string.match(record or '', '^%S+ (%a+):(%d+%-%d+) (.*)$')
  local lane = lane_of[name]
  if not lane or recorded ~= reply or answered(request_id) or is_tracked(lane, id, request_id) then return 0 end
  if ARGV[2] == '1' then
    local message = 'its entry is gone, and it has no result: one of them was deleted by hand, or Redis lost it'
    local entry = {enqueued = enqueued_ms(lane, id), named = {}}
    local given = {error = openai_error(message, 'server_error', nil, 'vanished'), attempt = '0'}
    local read = call('EXISTS', tokens) == 1 and {} or nil
    publish(request_id, 'dead', describe(given, lane, id, entry), reply ~= '' and reply or nil, read)
    -- @guard vanish: an id goes with its result
    other_request(request_id, nil, nil, nil, cfg.result_ttl_ms)
    call('HDEL', ATTEMPTS, entry_field(lane, id))
    -- @guard vanish: interruptions are forgotten
    forget_interruptions(lane, {id})
  end
  return 1
end

local codes = {}
for i = 4, #ARGV, 2 do
  -- @guard vanish: in bounded calls
  if bytes >= tonumber(ARGV[3]) then break end
  local key = SHARED + 1 + 4 * (i - 4) / 2
  codes[#codes + 1] = vanish(ARGV[i], ARGV[i + 1], call('GET', KEYS[key]), KEYS[key + 3])
end
return codes
