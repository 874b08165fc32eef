-- @include pace_measure
-- Measure the pace of the queue: how fast requests come and are taken. Expected times follow from it.
-- KEYS: shared; the string `pace`. ARGV: 1 configuration. Returns nothing.
open_for_writes()
measure_pace()
