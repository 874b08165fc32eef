-- @include keys
-- Stream ids as sorted-set members whose byte order is id order: equal ranks stay first in, first out. Returns the
-- member, and the id's time.
local function member_and_ms(id)
  local ms, seq = string.match(id, '^(%d+)%-(%d+)$')
  return string.char(64 + #ms) .. ms .. '-' .. string.char(64 + #seq) .. seq, tonumber(ms)
end

local function encode_id(id) return (member_and_ms(id)) end

-- Nil for an id that was written by hand and that a command would refuse halfway through: each part has 64 bits.
local function sound_id(ms, seq)
  if not ms then return nil end
  if #ms < 20 and #seq < 20 then return ms .. '-' .. seq end   -- nearly all
  for _, part in ipairs({ms, seq}) do
    if #part > 20 or #part == 20 and part > '18446744073709551615' then return nil end
  end
  return ms .. '-' .. seq
end

local function decode_id(member) return sound_id(string.match(member, '^%u(%d+)%-%u(%d+)$')) end

-- The stream id that stands in a hash; nil for none, and for text that was written by hand.
local function given_id(text) return text and sound_id(string.match(text, '^(%d+)%-(%d+)$')) end

-- Lane and stream id of a field that entry_field made; nil for any other field.
local function lane_and_id(field)
  local lane, ms, seq = string.match(field, '^([1-9])|(%d+)%-(%d+)$')
  local id = sound_id(ms, seq)
  if id and LANE_NAMES[tonumber(lane)] then return tonumber(lane), id end
end

local function id_ms(id) return tonumber(string.match(id, '^%d+')) end
