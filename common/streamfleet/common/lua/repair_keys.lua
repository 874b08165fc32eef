-- @include keys
-- Check whole keys for damage that only commands by hand can do: a wrong type, a missing expiry, a result without a
-- status, a counter that is not a number. An unusable key is renamed, not deleted: its writer may want it.
-- KEYS: shared; then the keys to check. ARGV: 1 configuration; 2 '1' to repair, '0' to look only; 3 suffix of the new
--   name of an unusable key; then for each key: its required type, its life (ms) or '' if it needs none, its required
--   field or ''.
-- Returns findings as a flat list of kind, key and problem.
local mend, found = ARGV[2] == '1', {}

local function note(...)
  for _, word in ipairs({...}) do found[#found + 1] = word end
end

local function set_aside(key, kind, what)
  note(kind, key, what)
  if mend then call('RENAME', key, key .. ARGV[3]) end
end

local function look_at_counts()
  local flat = call('HGETALL', COUNTS)
  for i = 1, #flat, 2 do
    if not string.find(flat[i + 1], '^%-?%d+$') or #flat[i + 1] > 15 then
      note('odd_count', COUNTS, flat[i])
      -- @guard keys: counters are numbers
      if mend then call('HDEL', COUNTS, flat[i]) end
    end
  end
end

local function look_at(key, expected, life, field)
  local kind = call('TYPE', key).ok
  if kind == 'none' then return end
  -- @guard keys: of another type
  if kind ~= expected then return set_aside(key, 'wrong_type', kind) end
  -- @guard keys: a result without a status
  if field ~= '' and call('HEXISTS', key, field) == 0 then return set_aside(key, 'no_status', field) end
  if key == COUNTS then look_at_counts() end
  if life ~= '' and call('PTTL', key) == -1 then
    note('no_ttl', key, '')
    -- @guard keys: an end of life
    if mend then call('PEXPIRE', key, life) end
  end
end

if mend and call('TYPE', KEYS[1]).ok == 'stream' then open_for_writes() end
for i = SHARED + 1, #KEYS do
  local at = 1 + 3 * (i - SHARED)
  look_at(KEYS[i], ARGV[at], ARGV[at + 1], ARGV[at + 2])
end
return found
