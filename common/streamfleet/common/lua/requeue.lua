-- @include keys
-- Give a dead letter another life: its original fields are enqueued again, and its result is forgotten.
-- KEYS: shared; its result; its request record. ARGV: 1 configuration; 2 dead letter id; 3 lane; then the fields.
-- Returns the new entry's stream id, or '' when the dead letter is not there any more.
if not call('XRANGE', DEAD, ARGV[2], ARGV[2])[1] then return '' end
local id = call('XADD', lane_key(tonumber(ARGV[3])), '*', unpack(ARGV, 4))   -- first: a full server may refuse it
call('XDEL', DEAD, ARGV[2])
call('DEL', KEYS[19], KEYS[20])
call('HINCRBY', COUNTS, 'requeued', 1)
return id
