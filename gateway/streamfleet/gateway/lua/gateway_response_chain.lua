-- Read a chain of stored responses, from its last one to its first.
-- KEYS: 1 the last response, a hash. ARGV: 1 its id; 2 most responses; 3 most bytes of all inputs and outputs.
-- Returns code, and of each response status, root, input and output: code 1 read; 0 one of them is not there; 2 they are
--   too many, or too large.
local base, id, bytes = string.sub(KEYS[1], 1, -#ARGV[1] - 1), ARGV[1], 0
local found = {1}
for _ = 1, tonumber(ARGV[2]) do
  local each = redis.call('HMGET', base .. id, 'status', 'root', 'input', 'output', 'previous')
  if not each[1] then return {0} end
  for i = 1, 4 do found[#found + 1] = each[i] or '' end
  for i = 3, 4 do
    bytes = bytes + (tonumber(string.match(each[i] or '', '^@(%d+) ')) or #(each[i] or ''))
  end
  -- @guard gateway_response_chain: it is bounded
  if bytes > tonumber(ARGV[3]) then return {2} end
  id = each[5]
  if id == '' then return found end
end
return {2}
