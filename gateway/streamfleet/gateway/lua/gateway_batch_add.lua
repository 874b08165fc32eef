-- @include gateway_use
-- Accept a batch. Its input cannot be deleted from now on until the batch has ended.
-- KEYS: 1 the batch, a hash; 2 the batches of its tenant; 3 open batches; 4 its input file, a hash; 5 use of its
--   tenant, a hash; 6 the batch of its Idempotency-Key, a hash; 7 the jobs of its tenant if it is a batch, its batches if it
--   is a job; 8 the files of its tenant.
-- ARGV: 1 batch id; 2 its tenant; 3 time of its creation (epoch ms), because the oldest is taken first; 4 most bytes of
--   the inputs of a tenant's open batches, or 0 for any; 5 digest of the request under the key, or '' without a key; 6
--   life of the key (ms); 7 and 8 most batches and jobs of a tenant that have not ended, and that are kept; then names and
--   values of its fields.
-- Returns code and the batch's id: code 1 accepted, now or by the same call before; 0 the tenant has no such file; 2
--   its open batches are too large; 3 the key belongs to another request; 4 the key belongs to the same request, which
--   made this batch; 5 too many have not ended; 6 too many are kept: the oldest that ended have to go first; 7 the tenant
--   has too many files.
-- @guard gateway_batch_add: asked again
if redis.call('EXISTS', KEYS[1]) == 1 then return {1, ARGV[1]} end
if ARGV[5] ~= '' then
  local named = redis.call('HMGET', KEYS[6], 'batch', 'digest')
  -- @guard gateway_batch_add: a name is for one thing
  if named[1] and named[2] ~= ARGV[5] then return {3, ''} end
  -- @guard gateway_batch_add: a name is one batch's
  if named[1] then return {4, named[1]} end
end
local input = redis.call('HMGET', KEYS[4], 'tenant', 'bytes')
-- @guard gateway_batch_add: whose the input is
if input[1] ~= ARGV[2] then return {0, ''} end
local bytes, most, most_open = tonumber(input[2]) or 0, tonumber(ARGV[4]), tonumber(ARGV[7])
local queued, open = used(KEYS[5], 'queued_bytes'), used(KEYS[5], 'open')

-- A batch whose record somebody deleted is taken off the open ones (gateway_batch_take.lua), but never ends.
local function count_anew()
  local all, queued_now, open_now = redis.call('HGETALL', KEYS[5]), 0, 0
  for i = 1, #all, 2 do
    local id = string.match(all[i], '^open:(.*)$')
    if id and redis.call('ZSCORE', KEYS[3], id) then
      queued_now, open_now = queued_now + (tonumber(all[i + 1]) or 0), open_now + 1
    elseif id then
      redis.call('HDEL', KEYS[5], all[i])
    end
  end
  give_back(KEYS[5], 'queued_bytes', queued - queued_now, queued)
  give_back(KEYS[5], 'open', open - open_now, open)
  queued, open = queued_now, open_now
end

-- @guard gateway_batch_add: a batch that is gone counts no more
if open >= most_open or (most > 0 and queued + bytes > most) then count_anew() end
-- @guard gateway_batch_add: all open batches of a tenant
if most > 0 and queued + bytes > most then return {2, ''} end
-- @guard gateway_batch_add: a tenant's open batches
if open >= most_open then return {5, ''} end
-- @guard gateway_batch_add: the number of a tenant's files
if redis.call('ZCARD', KEYS[8]) >= MOST_FILES then return {7, ''} end
-- @guard gateway_batch_add: a tenant's batches
if redis.call('ZCARD', KEYS[2]) + redis.call('ZCARD', KEYS[7]) >= tonumber(ARGV[8]) then return {6, ''} end
redis.call('HSET', KEYS[1], unpack(ARGV, 9))
redis.call('HINCRBY', KEYS[4], 'uses', 1)
redis.call('HINCRBY', KEYS[5], 'queued_bytes', string.format('%.0f', bytes))
redis.call('HINCRBY', KEYS[5], 'open', 1)
redis.call('HSET', KEYS[5], 'open:' .. ARGV[1], string.format('%.0f', bytes))
redis.call('ZADD', KEYS[2], 0, ARGV[1])
redis.call('ZADD', KEYS[3], ARGV[3], ARGV[1])
if ARGV[5] ~= '' then
  redis.call('HSET', KEYS[6], 'batch', ARGV[1], 'digest', ARGV[5])
  -- @guard gateway_batch_add: names are forgotten
  redis.call('PEXPIRE', KEYS[6], ARGV[6])
end
return {1, ARGV[1]}
