-- @include gateway_clock
-- @include gateway_batch
-- Save a batch's progress: the stored contents, the lines that they answer, and the counts, all at once.
-- KEYS: 1 the batch, a hash; 2 its finished lines, a bitmap; 3 contents that no file owns; 4 and 5 contents of its output
--   and of its error file, lists.
-- ARGV: 1 batch id; 2 epoch; 3 JSON: `lines` (numbers from 1), `parts` (list of: 1 output or 2 error, name, bytes),
--   `counts` (field to what to add), `fields` (field to its value), `from` and `to` (statuses); 4 epoch ms in place of the
--   server's, or ''.
-- Returns code and status: code 1 written; 0 another gateway has the batch; 2 a line is finished already; 3 a content
--   has expired. Nothing is written unless the code is 1. The status changes only if it is `from`.
-- @guard gateway_batch_save: fenced by the epoch
if theirs() then return {0, ''} end
local step, now = cjson.decode(ARGV[3]), clock_ms(ARGV[4])
local status = call('HGET', KEYS[1], 'status')
for _, line in ipairs(step.lines) do
  -- @guard gateway_batch_save: a line is finished once
  if call('GETBIT', KEYS[2], line - 1) == 1 then return {2, status} end
end
for _, part in ipairs(step.parts) do
  local held = call('ZSCORE', KEYS[3], part[2])
  -- @guard gateway_batch_save: a content whose time is over
  if not held or tonumber(held) <= now then return {3, status} end
end
-- Needs no memory, and a full server then allows the rest too, so that finished lines can be stored.
call('ZREM', KEYS[3], '')
for _, part in ipairs(step.parts) do
  local bytes = string.format('%.0f', part[3])
  call('ZREM', KEYS[3], part[2])
  call('RPUSH', KEYS[3 + part[1]], bytes .. ' ' .. part[2])
  call('HINCRBY', KEYS[1], part[1] == 1 and 'output_bytes' or 'error_bytes', bytes)
end
for _, line in ipairs(step.lines) do call('SETBIT', KEYS[2], line - 1, 1) end
for name, more in pairs(step.counts) do call('HINCRBY', KEYS[1], name, string.format('%.0f', more)) end
for name, value in pairs(step.fields) do call('HSET', KEYS[1], name, value) end
-- @guard gateway_batch_save: progress makes stumbles forgotten
call('HDEL', KEYS[1], 'stumbles')
if step.to and status == step.from then
  status = step.to
  call('HSET', KEYS[1], 'status', status, status .. '_ms', string.format('%.0f', now))
end
return {1, status}
