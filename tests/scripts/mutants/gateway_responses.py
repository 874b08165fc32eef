"""Stored responses of the HTTP gateway."""

from __future__ import annotations

from tests.scripts.mutants.mutant import Mutant

_ROOM = "call('ZCARD', KEYS[2]) + more > most or used(KEYS[3], 'response_bytes') + bytes > most_bytes"
MUTANTS = (
    Mutant("gateway_response_add: what has not ended stays", caught_by="gateway_responses.what_has_not_ended_stays"),
    Mutant(
        "gateway_response_add: the number of a tenant's",
        _ROOM,
        "used(KEYS[3], 'response_bytes') + bytes > most_bytes",
        "gateway_responses.what_has_not_ended_stays",
    ),
    Mutant(
        "gateway_response_add: the bytes of a tenant's",
        _ROOM,
        "call('ZCARD', KEYS[2]) + more > most",
        "gateway_responses.an_end_makes_room_too",
    ),
    Mutant(
        "gateway_response_add: asked again",
        "if known and known ~= ARGV[8] then return known end\n",
        "",
        "gateway_responses.a_second_call_changes_nothing",
    ),
    Mutant(
        "gateway_response_add: only the one that was read is replaced",
        "if known and known ~= ARGV[8] then",
        "if known and ARGV[8] == '0' then",
        "gateway_responses.a_later_try_replaces_what_it_has_read_and_nothing_else",
    ),
    Mutant(
        "gateway_response_add: what is replaced goes",
        "if old then forget(ARGV[1] .. ' ' .. old) end\n",
        "",
        "gateway_responses.a_later_try_replaces_what_it_has_read_and_nothing_else",
    ),
    Mutant(
        "gateway_response_add: what finds no room replaces nothing",
        "if not make_room(tonumber(ARGV[5])",
        "call('DEL', KEYS[1])\nif not make_room(tonumber(ARGV[5])",
        "gateway_responses.what_finds_no_room_replaces_nothing",
    ),
    Mutant(
        "gateway_response_add: it steps over what has not ended",
        "if stays then at = at + 1 else",
        "if stays then return not is_full else",
        "gateway_responses.the_oldest_that_have_ended_make_room_behind_one_that_has_not",
    ),
    Mutant(
        "gateway_response_add: thirty days",
        "if not is_full and tonumber(piece[2 * i]) > oldest_ms then return true end",
        "if not is_full then return true end",
        "gateway_responses.after_thirty_days_they_go",
    ),
    Mutant(
        "gateway_response_add: records expire",
        "call('PEXPIRE', KEYS[1], ARGV[4])\n",
        "",
        "gateway_responses.after_thirty_days_they_go",
    ),
    Mutant(
        "gateway_response_add: so does the list",
        "  call('PEXPIRE', KEYS[2], life_ms)\n",
        "",
        "gateway_responses.after_thirty_days_they_go",
    ),
    Mutant(
        "gateway_response_add: what expired counts no more",
        "  call('HDEL', KEYS[3], 'response_bytes')   -- the set has expired\n",
        "",
        "gateway_responses.what_a_tenant_has_is_counted_anew_where_nothing_is_left",
    ),
    Mutant("gateway_response_finish: it ends once", caught_by="gateway_responses.it_ends_once"),
    Mutant(
        "gateway_response_finish: a content that was replaced is let go",
        "if call('HGET', KEYS[1], 'response') ~= was[4] then let_go({was[4]}) end\n",
        "",
        "gateway_responses.a_deleted_response_leaves_its_contents_to_be_deleted",
    ),
    Mutant(
        "gateway_response_finish: open until it is announced",
        "if ARGV[6] ~= '1' then call('ZREM'",
        "if true then call('ZREM'",
        "gateway_responses.one_whose_end_is_announced_stays_open_until_then",
    ),
    Mutant(
        "gateway_response_delete: contents are let go",
        "  let_go({texts[1] or '', texts[2] or '', texts[3] or ''})\n",
        "",
        "gateway_responses.a_deleted_response_leaves_its_contents_to_be_deleted",
    ),
    Mutant(
        "gateway_response_delete: its items are not found any more",
        "call('DEL', BASE .. id, unpack(item_keys(id, texts[4])))",
        "call('DEL', BASE .. id)",
        "gateway_responses.a_deleted_response_leaves_its_contents_to_be_deleted",
    ),
    Mutant(
        "gateway_response_delete: gives room back",
        "  call('ZREM', KEYS[5], id)\n  give_back(",
        "  call('ZREM', KEYS[5], id)\n  print(",
        "gateway_responses.a_deleted_response_leaves_its_contents_to_be_deleted",
    ),
    Mutant("gateway_response_chain: it is bounded", caught_by="gateway_responses.a_chain_is_bounded"),
)
