-- Take the turn at the housekeeping, unless another worker has it. A script, though one command would do: while a cluster
-- moves the queue's slot, plain commands are answered and scripts are not, and who hears nothing knows that nobody renews.
-- KEYS: 1 the lock. ARGV: 1 worker; 2 how long it has the turn (ms).
-- Returns 1 when the turn is this worker's, else 0.
return redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) and 1 or 0
