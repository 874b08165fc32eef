"""`streamfleet acl`: prints the permissions of each role as rules for Redis's ACL."""

from __future__ import annotations

from typing import Annotated

import typer

from streamfleet.common.protocol import LANES, Lane
from streamfleet.operator.access_rules import Role
from streamfleet.operator.commands.common import QueueName, out, queue_settings, say

HINT = (
    "No password is set, so nobody can log in yet. Add the SHA-256 of one to the rules, as #<64 hex digits>: "
    'printf %s "$PASSWORD" | sha256sum'
)
RELEASES = "Needs Redis 7.0 or newer, or Valkey: 6.2 knows no selectors, and refuses the rules."


def acl(
    role: Annotated[
        Role | None, typer.Option("--role", help="One role only. Default: a whole users.acl, with all of them.")
    ] = None,
    user: Annotated[
        str | None, typer.Option("--user", metavar="NAME", help="The Redis user. Default: streamfleet-ROLE.")
    ] = None,
    lane: Annotated[
        list[Lane] | None, typer.Option("--lane", "-l", help="Where a producer may put requests; may be repeated.")
    ] = None,
    all_queues: Annotated[bool, typer.Option("--all-queues", help="For every queue, in place of one.")] = False,
    setuser: Annotated[
        bool, typer.Option("--setuser", help="With --role: a command for redis-cli, in place of a line of users.acl.")
    ] = False,
    queue: QueueName = None,
) -> None:
    """Print Redis ACL rules: each role may do its job on the queue's keys, and nothing else.

    Connects to nothing. Needs Redis 7.0 or newer, or Valkey. No password is in the rules: nobody can log in before you
    add one, as a hash. docs/security.md says what each role can do, and what no rule can prevent.

    ```text
    streamfleet acl > users.acl
    streamfleet acl --queue summaries --role producer --user billing --lane normal --lane low
    streamfleet acl --role worker --setuser | redis-cli
    ```
    """
    from streamfleet.common.keys import Keys
    from streamfleet.operator.access_rules import Patterns, rules, setuser_command, users_acl, users_acl_line

    settings = queue_settings(None, queue)
    patterns = Patterns(Keys(settings.queue, settings.key_prefix), all_queues)
    if role is None:
        if user or lane or setuser:
            raise typer.BadParameter("--user, --lane and --setuser are about one user: name its --role")
        out(users_acl(patterns).rstrip("\n"))
    else:
        if lane and role is not Role.PRODUCER:
            raise typer.BadParameter("--lane is for --role producer: the others have to do with all lanes")
        words = rules(role, patterns, lane or LANES)
        out((setuser_command if setuser else users_acl_line)(user or f"streamfleet-{role}", words))
    say(HINT)
    say(RELEASES)
