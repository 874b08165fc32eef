-- Add to a stream that asks workers for something, also where the server is full: what workers are asked for makes room.
-- KEYS: 1 the stream; 2 a key of which there is none, and which the caller may delete. ARGV: 1 about how many the stream
--   keeps; 2 name and 3 value of its field.
-- Returns the new stream id.
redis.pcall('DEL', KEYS[2])   -- first: a full server allows it, and then what comes behind it
return redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[1], '*', ARGV[2], ARGV[3])
