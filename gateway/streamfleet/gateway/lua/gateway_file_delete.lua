-- @include gateway_clock
-- @include gateway_use
-- Delete a file; its contents then belong to no file.
-- KEYS: 1 the file, a hash; 2 its contents, a list; 3 the files of its tenant; 4 when files end; 5 contents that no file
--   owns; 6 what its tenant uses, a hash.
-- ARGV: 1 file id; 2 its tenant; 3 epoch ms in place of the server's, or ''.
-- Returns code and its entry in the list of contents: code 1 deleted; 0 the tenant has no such file; 2 a batch needs
--   it.
local found = redis.call('HMGET', KEYS[1], 'tenant', 'uses', 'bytes')
-- @guard gateway_file_delete: whose it is
if found[1] ~= ARGV[2] then return {0, {}} end
-- @guard gateway_file_delete: a batch needs it
if (tonumber(found[2]) or 0) > 0 then return {2, {}} end
local contents = redis.call('LRANGE', KEYS[2], 0, -1)
local together = used(KEYS[6], 'file_bytes')
redis.call('DEL', KEYS[1])   -- first: it needs no memory, and a full server then allows the rest too
redis.call('DEL', KEYS[2])   -- separate: another rule of the ACL allows it
redis.call('ZREM', KEYS[3], ARGV[1])
redis.call('ZREM', KEYS[4], ARGV[1])
-- @guard gateway_file_delete: gives room back
give_back(KEYS[6], 'file_bytes', tonumber(found[3]) or 0, together)
for _, content in ipairs(contents) do
  redis.call('ZADD', KEYS[5], clock_ms(ARGV[3]), (string.gsub(content, '^%d+ ', '')))
end
return {1, contents}
