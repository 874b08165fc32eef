-- The keys that every script gets first, which are SHARED in number (Keys.shared() in keys.py): of each lane its stream,
-- then its ready set, then its turns, then those below. ARGV[1] is the configuration: the prefix of the queue's
-- keys, the lanes, the most urgent first, and the limits. QueueLimits.encoded() in limits.py has the names.
-- Where the script is a function, what lies between `@begin` and `@end` runs at the beginning of each call, and all else
-- stays between the calls. There, ARGV[1] is the digest of the configuration and the shared keys with the configuration
-- behind it; or the digest alone, if a call has told them before: then one of the shared keys stands for all.
local GROUP, NOBODY = 'workers', '~'
local WAKE, SCHED, DEAD, ATTEMPTS, DELAYED, BENCH, WATCH, COUNTS, CANCELS, WORKERS, WAITING, SERVED, TENANTS
local HOMES, SESSIONS, LOADS
local call, cfg, now_in_ms, attempts_known, LANE_NAMES, LANE_COUNT, SHARED
-- Limits and keys of this queue; fields that were named; what a pull reads, and where a lane's values begin in what SCHED
-- tells; a 0 for each lane: a table that is made whole costs less than one that grows, and so `{nil}`, which has room for
-- one, stands for `{}` where one is to come. For homes: times, ms, at which calls asked something, and their number; the
-- workers that called; by lane the mark, the lowest row that was taken since the last look at the head, and the first row of
-- the index that waits for nobody: false for none, nil if that is not known.
-- `told_of`: the same of many queues, by digest.
local known, told_of

-- Entries that one command may copy before their sizes are known: 128 MiB if all are as large as allowed.
local MOST_UNSEEN

-- @begin
call = redis.call
known = told_of and told_of[ARGV[1]]
if known then
  local given = KEYS
  KEYS = known.keys
  if given[2] then
    KEYS = {unpack(KEYS)}
    for i = 2, #given do KEYS[#KEYS + 1] = given[i] end
  end
else
  local digest = string.byte(ARGV[1]) ~= 123 and string.sub(ARGV[1], 1, 40)   -- 123: {
  known = told_of and told_of[digest]
  if not known then
    if digest == ARGV[1] then return redis.error_reply('NOTTOLD no call has told this configuration') end
    local text = digest and string.sub(ARGV[1], 41) or ARGV[1]
    known = {limits = cjson.decode(text), fields = {}, zeros = {}, asked = {}, number = 0, callers = {}, marks = {}, over = {},
      nobodys = {}}
    for lane = 1, #known.limits.lanes do known.zeros[lane] = 0 end
    if digest then
      known.keys = {unpack(KEYS, 1, 3 * #known.limits.lanes + 16)}
      -- @guard configuration: nobody tells a configuration or keys under the digest of others
      if redis.sha1hex(text .. table.concat(known.keys)) ~= digest then return redis.error_reply('ERR not its digest') end
      told_of = told_of or {0}   -- the number of configurations comes first
      if told_of[1] == 256 then told_of[next(told_of, 1)] = nil else told_of[1] = told_of[1] + 1 end
      told_of[digest] = known
    end
  end
end
cfg = known.limits
LANE_NAMES, LANE_COUNT = cfg.lanes, #cfg.lanes
SHARED = 3 * LANE_COUNT + 16
MOST_UNSEEN = math.max(1, math.floor(134217728 / cfg.max_entry_bytes))
now_in_ms, attempts_known = cfg.now_ms, nil
WAKE, SCHED, DEAD, ATTEMPTS, DELAYED, BENCH, WATCH, COUNTS, CANCELS, WORKERS, WAITING, SERVED, TENANTS =
  unpack(KEYS, SHARED - 15, SHARED - 3)
HOMES, SESSIONS, LOADS = unpack(KEYS, SHARED - 2, SHARED)
-- @end

-- Bytes that a read may copy before the sizes of what it reads are known well.
local CHUNK_BYTES = 65536

local function lane_key(lane) return KEYS[lane] end
local function ready_key(lane) return KEYS[LANE_COUNT + lane] end
local function turns_key(lane) return KEYS[2 * LANE_COUNT + lane] end

-- Fields of SCHED: of each prefix one for each lane, with the lane's number. `prefixes`: each ends with a comma.
local function lane_fields(prefixes)
  local fields = known.fields[prefixes]
  if not fields then
    fields = {}
    for prefix in string.gmatch(prefixes, '([^,]*),') do
      for lane = 1, LANE_COUNT do fields[#fields + 1] = prefix .. lane end
    end
    known.fields[prefixes] = fields
  end
  return unpack(fields)
end

local function result_key(request_id) return cfg.prefix .. 'result:' .. request_id end
local function tokens_key(request_id) return cfg.prefix .. 'tokens:' .. request_id end
local function record_key(request_id) return cfg.prefix .. 'request:' .. request_id end
local function entry_name(lane, id) return LANE_NAMES[lane] .. ':' .. id end
local DIGITS = {'1', '2', '3', '4', '5', '6', '7', '8', '9'}   -- of lanes: joining a number to text takes longer
local function entry_field(lane, id) return DIGITS[lane] .. '|' .. id end

-- Number of records of attempts; asked once in a call, unless it makes one.
local function some_attempts()
  attempts_known = attempts_known or call('HLEN', ATTEMPTS)
  return attempts_known > 0
end

local function now_ms()
  if not now_in_ms then
    local time = call('TIME')
    now_in_ms = time[1] * 1000 + math.floor(time[2] / 1000)
  end
  return now_in_ms
end

-- Like call, for a key whose name others choose and whose type may be wrong: nil for a wrong type.
local function call_if_typed(...)
  local reply = redis.pcall(...)
  if type(reply) ~= 'table' or not reply.err then return reply end
  if not string.find(reply.err, 'WRONGTYPE', 1, true) then return call(...) end   -- any other error is raised unchanged
end

-- XADD to a stream of notifications. A client that can write to it can use up its ids or change its type; then nothing
-- is sent, because an error halfway would break every worker that calls the script.
-- Returns the new stream id, or nothing.
local function tell(...)
  local reply = redis.pcall('XADD', ...)
  if type(reply) ~= 'table' or not reply.err then return reply end
  if not (string.find(reply.err, 'WRONGTYPE', 1, true) or string.find(reply.err, 'last possible ID', 1, true)) then
    call('XADD', ...)   -- any other error is raised unchanged
  end
end

-- A server at its memory limit refuses a script's growing commands only until the script has written. Every
-- script that takes work out starts with this harmless write, so that a full server can still be drained.
local function open_for_writes() call('XACK', KEYS[1], GROUP, '0-0') end

-- Raises WRONGTYPE before any write if a key was overwritten: an error halfway would leave writes that are never counted.
-- Returns how many wait staged in each lane. `some`: true if the caller itself looks at WATCH, WAKE and DELAYED.
local function require_types(some)
  local waiting = {unpack(known.zeros)}
  for lane = 1, LANE_COUNT do waiting[lane] = call('ZCARD', ready_key(lane)) end
  some_attempts()
  call('HLEN', COUNTS)
  call('HLEN', SCHED)
  call('XLEN', DEAD)
  call('LLEN', BENCH)
  if some then return waiting end
  call('ZCARD', DELAYED)
  call('ZCARD', WATCH)
  call('XLEN', WAKE)
  return waiting
end

-- Raises NOGROUP before any write; the caller creates the groups and calls again. Halfway through, it would leave
-- writes behind whose counts were never added.
local function require_groups()
  -- @guard groups: missing ones are noticed before a write
  for lane = 1, LANE_COUNT do call('XPENDING', lane_key(lane), GROUP, '-', '+', 1) end
  require_types()
end

-- A value from an XINFO reply, which is a flat list of names and values.
local function named(list, name)
  for i = 1, #list, 2 do
    if list[i] == name then return list[i + 1] end
  end
end
