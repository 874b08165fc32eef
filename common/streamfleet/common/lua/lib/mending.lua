-- @include come_back
-- @include info
-- @include wake
-- Common part of those who compare and mend: their findings, and the sets of what waits with a label.
local mend, findings = ARGV[2] ~= '0', {}   -- a flat list of kind and name

local function note(kind, name)
  findings[#findings + 1] = kind
  findings[#findings + 1] = name
end

-- @policy order order_sets
require_types()
if mend then open_for_writes() end
local sets = make_order_sets()
