-- The keys that every script gets as KEYS[1..18] (Keys.shared() in keys.py), and ARGV[1], the queue's configuration.
local call = redis.call
local GROUP, NOBODY, LANE_COUNT = 'workers', '~', 4
local LANE_NAMES = {'critical', 'high', 'normal', 'low'}
local WAKE, SCHED, DEAD, TRIES, DELAYED = KEYS[9], KEYS[10], KEYS[11], KEYS[12], KEYS[13]
local BENCH, WATCH, COUNTS, CANCELS, WORKERS = KEYS[14], KEYS[15], KEYS[16], KEYS[17], KEYS[18]
-- prefix, result_ttl_ms, dead_cap, reply_cap, max_entry_bytes, and for tests now_ms
local cfg = cjson.decode(ARGV[1])

local function lane_key(lane) return KEYS[lane] end
local function ready_key(lane) return KEYS[LANE_COUNT + lane] end
local function result_key(request_id) return cfg.prefix .. 'result:' .. request_id end
local function entry_name(lane, id) return LANE_NAMES[lane] .. ':' .. id end
local function tries_field(lane, id) return lane .. '|' .. id end

local function now_ms()
  if cfg.now_ms then return cfg.now_ms end
  local time = call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- A server at its memory limit refuses a script's growing commands only until the script has written. Every
-- script that takes work out starts with this harmless write, so that a full server can still be drained.
local function open_for_writes() call('XACK', KEYS[1], GROUP, '0-0') end

-- Raises NOGROUP while nothing has been written yet; the caller makes the groups and calls again. Halfway through, it
-- would leave writes behind whose counts were never added.
local function require_groups()
  for lane = 1, LANE_COUNT do call('XPENDING', lane_key(lane), GROUP, '-', '+', 1) end
end
