-- @include entry
-- Enqueue a dead letter again: its original fields make a new entry, its result is deleted, and the record of its id
-- names the new entry. Refused if the id belongs to another entry by now, whose answer must be neither lost nor given
-- to the caller of this one. A repeated call, after a lost answer, gives the same answer.
-- KEYS: shared; its result; its request record; its tokens. ARGV: 1 configuration; 2 dead letter id; 3 lane; 4 entry that
--   the letter names; 5 request id; 6 digest of the request; 7 reply name or ''; then the fields.
-- Returns the new entry's stream id, or '' if the dead letter no longer exists; and '', or after a refusal the status
--   of the id's present request, `outstanding` if it has not ended.
local letter, lane, former, request_id = ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5]
local digest, entry = string.match(call('GET', KEYS[SHARED + 2]) or '', '^(%S+) (%S+)')
-- @guard requeue: not what is gone
if not call('XRANGE', DEAD, letter, letter)[1] then
  local id = entry and entry ~= former and string.match(entry, '^%a+:(%d+%-%d+)$')
  -- Its id belongs to a later entry than the letter's own: it was requeued.
  return {id and tonumber(string.match(id, '^%d+')) >= tonumber(string.match(letter, '^%d+')) and id or '', ''}
end
local result = call_if_typed('HMGET', KEYS[SHARED + 1], 'status', 'entry') or {}   -- another type was written there by hand
-- @guard requeue: not over a newer result
if result[1] and result[2] ~= former then return {'', result[1]} end
-- @guard requeue: not beside a newer request
if entry and entry ~= former then return {'', 'outstanding'} end
local id = call('XADD', lane_key(lane), '*', unpack(ARGV, 8))   -- first: a full server may refuse it
-- @guard requeue: the dead letter goes
call('XDEL', DEAD, letter)
-- @guard requeue: the result is forgotten
call('DEL', KEYS[SHARED + 1])
-- @guard tokens: another life has its own
if call('DEL', KEYS[SHARED + 3]) == 1 then
  -- @guard tokens: another life says that it is one
  redis.pcall('XADD', KEYS[SHARED + 3], '*', 'requeued', letter)
  redis.pcall('PEXPIRE', KEYS[SHARED + 3], cfg.result_ttl_ms)
end
-- A request without an id of its own gets a new one here, so its end will not shorten this record.
local life = usable_name(request_id) and cfg.record_ttl_ms or cfg.result_ttl_ms
-- @guard requeue: its id stays taken
call('SET', KEYS[SHARED + 2], (digest or ARGV[6]) .. ' ' .. entry_name(lane, id) .. ' ' .. ARGV[7], 'PX', life)
call('HINCRBY', COUNTS, 'requeued', 1)
return {id, ''}
