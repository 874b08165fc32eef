-- @include keys
-- @include tables
-- Names fields of an entry that look like a mistake; fields of others do not. `unknown_fields` in envelope.py says the same
-- of requests that a worker ends.

-- Returns a JSON array of sentences; nil for none. `fields`: by name. The tables are made only here, because few results need them.
return function(fields)
  local elsewhere = {priority = 'the lane is the priority', model = 'the model belongs into the body'}
  local meant, known, names, found, sub = {}, {}, {}, {}, string.sub
  for name in string.gmatch(TABLES.known .. ' priority model', '%S+') do
    meant[#meant + 1], known[name] = name, not elsewhere[name]
  end
  for name in pairs(fields) do
    if not known[name] and #names < 256 then names[#names + 1] = name end
  end
  table.sort(names)
  local function near(a, b)   -- at most one byte is added, left out or replaced, or two neighbours are exchanged
    for i = 1, math.abs(#a - #b) < 2 and math.max(#a, #b) or 0 do
      local rest = sub(a, i + 1)
      if rest == sub(b, i) or rest == sub(b, i + 1) or sub(a, i) == sub(b, i + 1) then return true end
      if sub(a, i, i + 1) == string.reverse(sub(b, i, i + 1)) and sub(a, i + 2) == sub(b, i + 2) then return true end
      if sub(a, i, i) ~= sub(b, i, i) then return false end
    end
  end
  for _, name in ipairs(names) do
    for _, each in ipairs(meant) do
      if #found < 8 and near(string.lower(name), each) then
        local advice = elsewhere[each] or "did you mean '" .. each .. "'?"
        found[#found + 1] = "field '" .. string.gsub(name, '[^ -~]', '?') .. "' is unknown and was passed over; " .. advice
        break
      end
    end
  end
  return found[1] and cjson.encode(found)
end
