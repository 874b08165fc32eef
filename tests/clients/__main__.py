"""Clients of others at a gateway with real vLLM workers: each makes its calls the way that it makes them by default.

    python -m tests.clients                     # all families; packages go to build/clients, an environment for each
    python -m tests.clients openai langchain    # these alone
    python -m tests.clients --page              # and writes the table of docs/start.md

Everything but the installing runs in a network namespace that has loopback alone. Prints a line for each call, and ends
with 0 if each came out as `families.toml` expects, with 1 if not, and with 77 where the packages, Node or a network
namespace cannot be had.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import sysconfig
import tempfile
import time
import tomllib
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.progress import Progress

from streamfleet.cli.demo.model import model_folder
from streamfleet.common.protocol import Lane
from tests.integration.gateway_process import GatewayProcess, gateway_on, make_key
from tests.integration.worker_process import WorkerProcess
from tests.servers import newest
from tests.support.redis_server import RedisServer, find_servers
from tests.waiting import eventually_blocking

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
BUILD = ROOT / "build" / "clients"
PAGE = ROOT / "docs" / "start.md"
BEGIN, END = "<!-- table: make clients ARGS=--page -->", "<!-- end of the table -->"
NPM = ["npm", "install", "--no-package-lock", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
INSTALL_S, START_S, ASK_S = 900, 300, 600
INSIDE = "STREAMFLEET_CLIENTS_INSIDE"
CHAT, EMBEDDER, CONTEXT = "demo", "demo-embed", 4096
TOLD = "simulated"  # an agent's first words alone are more than the demo's model can read
STRICT = "--tool-strict-level parameter"  # else a small model's tool calls do not fit their schema
LATER = "expected to fail"


@dataclass(frozen=True)
class Family:
    """Clients that share an environment, as `families.toml` has them.

    Attributes:
        name: that of its environment.
        program: what makes the calls, with arguments; of `programs/`.
        packages: what is installed, with versions; none where this project's environment has it.
        node: True for packages of npm.
        beside: True if this project's own packages are there too, or torch for GPUs, 5 GB, comes.
        title: what the table calls it; the packages if it is empty.
        later: for each call that is expected to fail, until when or why.
    """

    name: str
    program: str
    packages: tuple[str, ...]
    node: bool
    beside: bool
    title: str
    later: dict[str, str]

    @property
    def folder(self) -> Path:
        return BUILD / self.name

    def install(self) -> None:
        """Make its environment, unless it is as the pins say."""
        pins, kept = "\n".join(self.packages), self.folder / "packages.txt"
        if kept.exists() and kept.read_text() == pins:
            return
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        if self.node:
            (self.folder / "package.json").write_text('{"private": true, "type": "module"}')
            command = [*NPM, "--save-exact", *self.packages]
        else:
            venv.create(self.folder, with_pip=True)
            if self.beside:
                (site,) = self.folder.glob("lib/*/site-packages")
                (site / "beside.pth").write_text(sysconfig.get_path("purelib"))
            command = [f"{self.folder}/bin/python", "-m", "pip", "install", "--quiet", *self.packages]
        done = subprocess.run(command, cwd=self.folder, timeout=INSTALL_S, capture_output=True, text=True, check=False)
        if done.returncode:
            raise OSError(f"{self.name}: {done.stderr[-500:]}")
        kept.write_text(pins)

    def ask(self, environment: dict[str, str], log: Path) -> Iterator[tuple[str, str]]:
        """Make its calls: the name of each, and its error, empty if it succeeded."""
        program, *arguments = self.program.split()
        if self.node:
            for each in (program, "calls.mjs"):  # Node looks for packages beside the program
                shutil.copy(HERE / "programs" / each, self.folder)
            command = ["node", program, *arguments]
        else:
            python = self.folder / "bin" / "python" if self.packages else Path(sys.executable)
            command = [str(python), str(HERE / "programs" / program), *arguments]
        cwd = self.folder if self.packages else BUILD
        with log.open("w") as errors:
            done = subprocess.run(
                command, cwd=cwd, env=environment, stdout=subprocess.PIPE, stderr=errors, timeout=ASK_S, check=False
            )
        lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith(b'{"call"')]
        yield from ((line["call"], line["error"] or "") for line in lines)
        if not lines or done.returncode:
            yield "all calls", f"the program ended with {done.returncode}: {log.read_text()[-300:]}"


def families(names: list[str]) -> list[Family]:
    """The families of these names, or all.

    Raises:
        KeyError: there is none of a name.
    """
    found = {
        name: Family(
            name,
            row["program"],
            tuple(row.get("packages", ())),
            ".mjs" in row["program"],
            row.get("beside", False),
            row.get("title", ""),
            {call: why for why, calls in row.get("later", {}).items() for call in calls},
        )
        for name, row in tomllib.loads((HERE / "families.toml").read_text()).items()
    }
    return [found[name] for name in names or found]


def main() -> int:
    """Install, enter a namespace without network, ask, judge."""
    parser = argparse.ArgumentParser(
        "python -m tests.clients", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("families", nargs="*", help="names of families.toml; all without")
    parser.add_argument("--page", action="store_true", help="write the table of docs/start.md")
    options = parser.parse_args()
    try:
        chosen = families(options.families)
    except KeyError as error:
        parser.error(f"there is no family {error}; see {HERE / 'families.toml'}")
    if INSIDE not in os.environ:
        return outside(chosen)
    loopback_up()
    rows = asked(chosen)
    if options.page:
        before, _, rest = PAGE.read_text().partition(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}\n\n{table(rows)}\n{END}{rest.partition(END)[2]}")
    wrong = [f"{row.family.name}: {row.call}: {row.verdict}" for row in rows if row.wrong]
    print(*(["", "not as expected:", *wrong] if wrong else ["", f"all {len(rows)} calls as expected"]), sep="\n")
    return int(bool(wrong))


def outside(chosen: list[Family]) -> int:
    """Install what is missing, and run this again where there is no network."""
    try:
        with Progress() as progress:
            for family in progress.track(chosen, description="installing"):
                if family.packages:
                    family.install()
    except (OSError, subprocess.SubprocessError) as error:
        print(f"clients: npm, and registries of npm's and Python's packages, are needed: {error}", file=sys.stderr)
        return 77
    model_folder()
    apart = ["unshare", "--user", "--map-root-user", "--net"]
    if shutil.which("unshare") is None or subprocess.run([*apart, "true"], check=False).returncode:
        print("clients: a network namespace is needed, of util-linux's unshare", file=sys.stderr)
        return 77
    again = [*apart, sys.executable, "-m", "tests.clients", *sys.argv[1:]]
    return subprocess.run(again, env=os.environ | {INSIDE: "1"}, check=False).returncode


def loopback_up() -> None:
    """Let this namespace's loopback work: SIOCSIFFLAGS with IFF_UP, see netdevice(7)."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as opened:
        fcntl.ioctl(opened, 0x8914, struct.pack("16sh", b"lo", 1))


@dataclass(frozen=True)
class Row:
    """Outcome of a call; `error` is empty if it succeeded."""

    family: Family
    call: str
    error: str

    @property
    def later(self) -> str:
        return self.family.later.get(self.call, "")

    @property
    def wrong(self) -> bool:
        return bool(self.error) != bool(self.later)

    @property
    def verdict(self) -> str:
        if not self.later:
            return self.error or "ok"
        return f"{LATER} ({self.later})" if self.error else f"passes, and was {LATER} ({self.later})"


def asked(chosen: list[Family]) -> list[Row]:
    """Rows of all calls, each printed as it comes."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder, stage(Path(folder)) as environment:
        for family in chosen:
            began = time.monotonic()
            for call, error in family.ask(environment, BUILD / f"{family.name}.log"):
                rows.append(Row(family, call, error))
                print(f"{family.name:<20}{call:<32}{rows[-1].verdict}", flush=True)
            print(f"{family.name:<20}{time.monotonic() - began:.0f} s", flush=True)
    return rows


@contextmanager
def stage(folder: Path) -> Iterator[dict[str, str]]:
    """A gateway with a worker that chats and one that embeds, both real, and a simulated one for agents.

    Yields the environment that clients need.
    """
    model = str(model_folder())
    shared: dict[str, Any] = {"engine": "vllm", "model": model, "lease_ms": 10_000}
    size = f"--max-num-seqs 8 --max-model-len {CONTEXT} --served-model-name"
    with RedisServer(newest(find_servers())) as server:
        chatting = WorkerProcess(
            server.url,
            folder,
            "chat",
            **shared,
            engine_args=f"{size} {CHAT} --enable-auto-tool-choice --tool-call-parser hermes {STRICT}",
        )
        embedding = WorkerProcess(
            server.url,
            folder,
            "embed",
            **shared,
            queue="embeddings",
            engine_args=f"{size} {EMBEDDER} --runner pooling --convert embed",
        )
        agents = WorkerProcess(server.url, folder, "told", ["told"], queue="agents")
        workers = (chatting, embedding, agents)
        try:
            for worker in workers:
                eventually_blocking(lambda: worker.events("worker_ready") or not worker.alive, START_S)  # noqa: B023
                worker.ready_blocking()
            models = f"{CHAT}=default,{EMBEDDER}=embeddings,{TOLD}=agents"
            with gateway_on(server.url, folder, GatewayProcess, gateway_models=models) as gateway:
                key, _ = make_key(server.url, "clients", lanes=tuple(Lane))
                yield client_environment(gateway.url, key, model)
        finally:
            for worker in workers:
                worker.destroy()


def client_environment(url: str, key: str, model: str) -> dict[str, str]:
    """Environment of the programs: neither settings of streamfleet nor a wish to reach a hub."""
    outer = {name: value for name, value in os.environ.items() if not name.startswith("STREAMFLEET_")}
    bundled = next(BUILD.glob("litellm/lib/*/site-packages/litellm/litellm_core_utils/tokenizers"), BUILD)
    return outer | {
        "CLIENTS_URL": f"{url}/v1",
        "CLIENTS_KEY": key,
        "CLIENTS_MODEL": CHAT,
        "CLIENTS_EMBEDDER": EMBEDDER,
        "CLIENTS_TOLD": TOLD,
        "CLIENTS_FOLDER": model,
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(BUILD / "huggingface"),
        "PATH": f"{Path(sys.prefix) / 'programs'}{os.pathsep}{os.environ['PATH']}",
        # tiktoken fetches its vocabulary; LiteLLM's wheel contains the one that is used for a model it does not know.
        "TIKTOKEN_CACHE_DIR": str(bundled),
    }


def table(rows: list[Row]) -> str:
    """The rows as Markdown, a line for each client."""
    lines = ["| client | calls that work |", "|---|---|"]
    for name in dict.fromkeys(row.family.name for row in rows):
        own = [row for row in rows if row.family.name == name]
        client = own[0].family.title or " ".join(f"`{each}`" for each in own[0].family.packages) or name
        failed = "".join(f", not {row.call}" for row in own if row.error)
        lines.append(f"| {client} | {sum(not row.error for row in own)} of {len(own)}{failed} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
