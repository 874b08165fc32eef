-- Ownership of a batch. Each taking raises its epoch, so that its former owner can write nothing more: KEYS[1] is the
-- batch, a hash; ARGV[1] its id; ARGV[2] the epoch in which the caller took it.
local call = redis.call

local function theirs() return call('HGET', KEYS[1], 'epoch') ~= ARGV[2] end
