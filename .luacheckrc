-- What Redis gives a script, and no more: naming another global is a fault that shows only when its line is reached.
std = {
  read_globals = {
    'KEYS', 'ARGV', 'redis', 'cjson', 'cmsgpack', 'struct', 'bit', 'assert', 'error', 'ipairs', 'math', 'next', 'pairs', 'pcall',
    'select', 'string', 'table', 'tonumber', 'tostring', 'type', 'unpack',
  },
}
max_line_length = false   -- of the tests
ignore = {
  '212',             -- a policy's function takes what all policies are given
  '311/taken', '311/wanted',   -- a guard's mutant takes the statement out that overwrites it
  '432/t',           -- each part of a policy is made by a function that takes the policy's table
  '542',             -- a branch whose comment says why nothing is done
}
