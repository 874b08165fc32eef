-- @include keys
-- Give a dead letter another life: its result is forgotten, and its original fields are enqueued again.
-- KEYS: shared; its result; its request record. ARGV: 1 configuration; 2 dead letter id; 3 lane; then the fields.
-- Returns the new entry's stream id, or '' when the dead letter is not there any more.
if call('XDEL', DEAD, ARGV[2]) == 0 then return '' end
call('DEL', KEYS[19], KEYS[20])
call('HINCRBY', COUNTS, 'requeued', 1)
return call('XADD', lane_key(tonumber(ARGV[3])), '*', unpack(ARGV, 4))
