-- @include bucket
-- Take tokens out of what a key may use in a minute, or put back what was not used.
-- KEYS: 1 what is left to the key, a hash.
-- ARGV: 1 tokens a minute; 2 tokens to take, negative to put back; 3 '1': they were used, take them even if that many
--   are not there; 4 epoch ms in place of the server's, or ''.
-- Returns code, tokens left, ms until all are there again, ms to wait: code 1 taken; 0 not so many are left.
local capacity, tokens, now = tonumber(ARGV[1]), tonumber(ARGV[2]), bucket_now_ms(ARGV[4])
local left = left_of(KEYS[1], 'tokens', capacity, now)
if tokens > left and ARGV[3] ~= '1' then
  return {0, math.floor(left), until_ms(left, capacity, capacity), until_ms(left, tokens, capacity)}
end
left = math.min(capacity, left - tokens)
keep_left(KEYS[1], 'tokens', left, now)
return {1, math.floor(left), until_ms(left, capacity, capacity), 0}
