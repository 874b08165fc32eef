-- @include gateway_clock
-- @include gateway_batch
-- @include gateway_use
-- End a batch: its output and error files appear, and its input may be deleted again.
-- KEYS: 1 the batch, a hash; 2 its finished lines; 3 and 4 output file, a hash, and its contents; 5 and 6 the same of the
--   error file; 7 the files of its tenant; 8 when files end; 9 its input file, a hash; 10 what was done for its tenant;
--   11 what its tenant uses, a hash.
-- ARGV: 1 batch id; 2 epoch; 3 final status; 4 for how long it is kept (ms); 5 JSON: `files` (ids of output and error
--   file), `fields` (of both files), `names` (of each), `files_kept_ms` (for how long both are kept), `stats` (field to
--   what to add), `errors` (JSON or false); 6 epoch ms in place of the server's, or ''.
-- Returns 1 ended, now or by the same call before; 0 another gateway has it.
-- @guard gateway_batch_finish: fenced by the epoch
if theirs() then return 0 end
local status = call('HGET', KEYS[1], 'status')
-- @guard gateway_batch_finish: asked again
if status == ARGV[3] then return 1 end
local say, now = cjson.decode(ARGV[5]), clock_ms(ARGV[6])
local ends = string.format('%.0f', now + say.files_kept_ms)
local mine, queued, open = 'open:' .. ARGV[1], used(KEYS[11], 'queued_bytes'), used(KEYS[11], 'open')
local input_bytes = used(KEYS[11], mine)
call('DEL', KEYS[2])   -- first: it needs no memory, and a full server then allows the rest too
local bytes = call('HMGET', KEYS[1], 'output_bytes', 'error_bytes')
-- @guard gateway_batch_finish: one less is open
if call('HDEL', KEYS[11], mine) == 1 then
  -- @guard gateway_batch_finish: gives room back
  give_back(KEYS[11], 'queued_bytes', input_bytes, queued)
  give_back(KEYS[11], 'open', 1, open)
end
for i = 1, 2 do
  if call('EXISTS', KEYS[2 + 2 * i]) == 1 then
    local file = KEYS[1 + 2 * i]
    for name, value in pairs(say.fields) do call('HSET', file, name, value) end
    local about = {'filename', say.names[i], 'bytes', bytes[i] or '0', 'expires_ms', ends}
    call('HSET', file, 'created_ms', string.format('%.0f', now), unpack(about))
    call('ZADD', KEYS[7], 0, say.files[i])
    call('ZADD', KEYS[8], ends, say.files[i])
    -- @guard gateway_batch_finish: its files take room
    call('HINCRBY', KEYS[11], 'file_bytes', bytes[i] or '0')
  end
end
if call('EXISTS', KEYS[9]) == 1 then call('HINCRBY', KEYS[9], 'uses', -1) end
for name, more in pairs(say.stats) do call('HINCRBY', KEYS[10], name, string.format('%.0f', more)) end
if say.errors then call('HSET', KEYS[1], 'errors', say.errors) end
call('HSET', KEYS[1], 'status', ARGV[3], ARGV[3] .. '_ms', string.format('%.0f', now))
call('PEXPIRE', KEYS[1], ARGV[4])
return 1
