"""The commands of the `streamfleet` command line that need no worker. Each imports what it needs when it runs."""

from __future__ import annotations

import typer

from streamfleet.producer.commands.acl import acl
from streamfleet.producer.commands.audit import audit
from streamfleet.producer.commands.backlog import backlog
from streamfleet.producer.commands.batch import batch
from streamfleet.producer.commands.dead import dead
from streamfleet.producer.commands.doctor import doctor
from streamfleet.producer.commands.drain import drain
from streamfleet.producer.commands.enqueue import enqueue
from streamfleet.producer.commands.pause import pause, resume
from streamfleet.producer.commands.result import cancel, result
from streamfleet.producer.commands.trace import trace
from streamfleet.producer.commands.workers import workers

REQUESTS, OPERATIONS = "Requests", "Operations"


def add_commands(app: typer.Typer) -> None:
    """Add all commands to the application."""
    app.command(rich_help_panel=REQUESTS)(enqueue)
    app.command(rich_help_panel=REQUESTS)(result)
    app.command(rich_help_panel=REQUESTS)(cancel)
    app.command(rich_help_panel=REQUESTS)(batch)
    app.command(rich_help_panel=OPERATIONS)(backlog)
    app.command(rich_help_panel=OPERATIONS)(workers)
    app.command(rich_help_panel=OPERATIONS)(trace)
    app.command(rich_help_panel=OPERATIONS)(pause)
    app.command(rich_help_panel=OPERATIONS)(resume)
    app.command(rich_help_panel=OPERATIONS)(drain)
    app.command(rich_help_panel=OPERATIONS)(doctor)
    app.command(rich_help_panel=OPERATIONS)(audit)
    app.command(rich_help_panel=OPERATIONS)(acl)
    app.add_typer(dead, rich_help_panel=OPERATIONS)
