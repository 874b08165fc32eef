"""Guards of ids that came with two requests."""

from __future__ import annotations

from tests.scripts.mutants.mutant import HISTORY, Mutant

MUTANTS = (
    Mutant("reused: what came by plain XADD is known by its body once it has ended"),
    Mutant("reused: what is cancelled is known by its body", seed=9),
    Mutant("reused: what was cancelled before it came is known by its body", seed=16),
    Mutant("reused: a long body is not read whole", caught_by="same_request.long_bodies_are_told_apart"),
    Mutant(
        "reused: what has no id of its own needs no record",
        "life and name ~= request_id",
        "life",
        HISTORY,
    ),
    Mutant("reused: another request's result is no answer", seed=2),
    Mutant(
        "reused: no answer is published under another request's id",
        "\n      or other_request(request_id, values[n - 2], reply, ARGV[at + 8], cfg.result_ttl_ms) then",
        " then",
    ),
    Mutant("reused: nothing is published under another request's id", seed=10),
    Mutant(
        "reused: the other request has not ended, and its record stays",
        caught_by="same_request.what_comes_beside_the_clients_request_is_not_its_answer",
    ),
    Mutant("reused: its caller is told, and not of the other request's answer", seed=2),
    Mutant("reused: a dead letter names both", seed=2),
    Mutant(
        "reused: a client's request is the same with other blanks",
        "if #known == 32 and #digest == 32 then",
        "if false then",
        "same_request.the_client_knows_its_request_by_its_json_or_by_its_bytes",
    ),
    Mutant(
        "reused: an endpoint makes another request",
        "(entry.named.endpoint or '') .. '\\0'",
        "'\\0'",
        "same_request.an_endpoint_makes_another_request_of_the_same_body",
    ),
)
