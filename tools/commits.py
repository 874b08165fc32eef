"""Check the commits since START: a subject of at most 72 characters, and a body where more than 20 lines change.

    .venv/bin/python tools/commits.py             the commits since START
    .venv/bin/python tools/commits.py COMMIT      since another one

CONTRIBUTING.md, "Commits". Without git, or in a copy whose history lacks that commit, as in a
shallow clone, it checks nothing, and says so.
"""

from __future__ import annotations

import shutil
import subprocess
import sys

START = "5ca92e0859ea5abb1d51252587322bc3f138479d"
"""The last commit from before the rule."""
SUBJECT_CHARS, LINES_WITHOUT_BODY = 72, 20
COMMIT, MESSAGE_END = "\x01", "\x02"


def main() -> int:
    """Print what is wrong, a line each. Returns 1 if anything is."""
    start = sys.argv[1] if len(sys.argv) > 1 else START
    if reason := unchecked(start):
        print(f"commits: not checked: {reason}", file=sys.stderr)
        return 0
    wrong = faults(start)
    sys.stderr.writelines(f"{line}\n" for line in wrong)
    return 1 if wrong else 0


def unchecked(start: str) -> str:
    """Returns why the commits since `start` cannot be told; empty where they can."""
    if shutil.which("git") is None:
        return "no git"
    if git("merge-base", "--is-ancestor", start, "HEAD").returncode == 0:
        return ""
    if git("rev-parse", "--is-shallow-repository").stdout.strip() == "true":
        return f"this clone is shallow and ends before {start[:8]}: git fetch --unshallow"
    return f"no commit {start[:8]} in this copy's history"


def faults(start: str) -> list[str]:
    """Returns what the commits since `start` lack."""
    form = f"--format={COMMIT}%h %s\n%b{MESSAGE_END}"
    done = git("log", "--no-merges", "--numstat", form, f"{start}..HEAD")
    done.check_returncode()
    return [line for commit in done.stdout.split(COMMIT)[1:] for line in _faults_of(commit)]


def git(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *arguments], capture_output=True, encoding="utf-8", check=False)


def _faults_of(commit: str) -> list[str]:
    """Returns what one commit lacks."""
    message, _, numbers = commit.partition(MESSAGE_END)
    headline, _, body = message.partition("\n")
    name, _, subject = headline.partition(" ")
    columns = [each for line in numbers.splitlines() for each in line.split("\t")[:2]]
    changed = sum(int(each) for each in columns if each.isdigit())  # a binary file has "-"
    wrong = []
    if len(subject) > SUBJECT_CHARS:
        wrong.append(f"its subject has {len(subject)} characters, more than {SUBJECT_CHARS}")
    if changed > LINES_WITHOUT_BODY and not body.strip():
        wrong.append(f"it changes {changed} lines, and no body says why")
    return [f"{name} {subject}: {each}" for each in wrong]


if __name__ == "__main__":
    sys.exit(main())
