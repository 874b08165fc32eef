-- @include keys
-- Rename keys that nothing can use, because their type is another or a field is missing: whoever wrote them may want them.
-- KEYS: shared; then the keys. ARGV: 1 configuration; 2 what the new names have at their end; then of each key the type and the
--   field that it must have, '' for none. Returns nothing.
for i = SHARED + 1, #KEYS do
  local kind, at = call('TYPE', KEYS[i]).ok, 1 + 2 * (i - SHARED)
  local right = kind == ARGV[at] and (ARGV[at + 1] == '' or call('HEXISTS', KEYS[i], ARGV[at + 1]) == 1)
  if not (kind == 'none' or right) then call('RENAME', KEYS[i], KEYS[i] .. ARGV[2]) end
end
