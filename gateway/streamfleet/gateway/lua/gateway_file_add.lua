-- @include gateway_clock
-- @include gateway_use
-- Make a file from stored contents.
-- KEYS: 1 the file, a hash; 2 its contents, a list; 3 the files of its tenant; 4 when files end; 5 contents that no file
--   owns; 6 what its tenant uses, a hash.
-- ARGV: 1 file id; 2 the content's name; 3 its entry in the list; 4 epoch ms in place of the server's, or ''; 5 when the
--   file ends (epoch ms); 6 its bytes; 7 how many bytes the files of a tenant may have, or 0 for any; then names and values
--   of its fields.
-- Returns 1 made, now or by the same call before; 0 the contents have expired, and may be being deleted; 2 the tenant's
--   files would be too large together; 3 they would be too many.
-- @guard gateway_file_add: asked again
if redis.call('EXISTS', KEYS[1]) == 1 then return 1 end
local held = redis.call('ZSCORE', KEYS[5], ARGV[2])
-- @guard gateway_file_add: a content whose time is over
if not held or tonumber(held) <= clock_ms(ARGV[4]) then return 0 end
local most = tonumber(ARGV[7])
-- @guard gateway_file_add: all files of a tenant
if most > 0 and used(KEYS[6], 'file_bytes') + tonumber(ARGV[6]) > most then return 2 end
-- @guard gateway_file_add: the number of a tenant's files
if redis.call('ZCARD', KEYS[3]) >= MOST_FILES then return 3 end
redis.call('HSET', KEYS[1], unpack(ARGV, 8))
redis.call('HINCRBY', KEYS[6], 'file_bytes', ARGV[6])
redis.call('RPUSH', KEYS[2], ARGV[3])
redis.call('ZADD', KEYS[3], 0, ARGV[1])
redis.call('ZADD', KEYS[4], ARGV[5], ARGV[1])
redis.call('ZREM', KEYS[5], ARGV[2])
return 1
