-- @include finish
-- Cancel a request, wherever it is: its result is written now; a queued entry is dropped when its turn comes, a running
-- one by its worker, which reads the stream of cancels.
-- KEYS: shared; its result; its reply stream (its result again when it has none).
-- ARGV: 1 configuration; 2 request id; 3 reply name or ''; 4 error JSON.
-- Returns 1 cancelled; 0 it had already ended.
open_for_writes()
local id, reply = ARGV[2], ARGV[3] ~= '' and ARGV[3] or nil
local values = {'error', ARGV[4], 'http_status', HTTP_STATUS.cancelled, 'finished_ms', string.format('%.0f', now_ms())}
if not publish(id, 'cancelled', values, reply) then return 0 end
tell(CANCELS, 'MAXLEN', '~', 10000, '*', 'id', id)
return 1
