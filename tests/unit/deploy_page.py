"""docs/deploy.md as commands, overlays and names, and what of them the manifests do not know.

Each check takes the page's text and returns what is wrong with it, so that a planted mistake can be tried too.
"""

from __future__ import annotations

import re
import shlex
import shutil
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import typer
import typer.main
import yaml

from streamfleet.cli.main import app
from tests.integration.k8s_chart import charted, merged, refusal_of
from tests.integration.k8s_manifests import (
    DOCKERFILE,
    K8S,
    ROOT,
    Manifest,
    kustomizations,
    name_of,
    of_kind,
    pod_of,
    render,
    workloads,
)
from tests.integration.k8s_rules import RULES, broken_rules, schema

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
VALUES, ADDED = "# fleet.yaml\n", "# Add to fleet.yaml\n"
OURS = "github.com/your-organisation/streamfleet//"
REF = re.compile(rf"({re.escape(OURS)}[^\s?]+)\?ref=\S+")
NAMESPACE = "streamfleet"
Check = Callable[[str], list[str]]
APPLIED = re.compile(r"--kustomize (\S+)")
FOLDERS = r"(?:k8s|monitoring|docs|bench|examples)"
ENDS = {"|", "&", "&&", ";", "{", "}"}
# Under all that a parser says of wrong words; typer has the class, and not its name.
USAGE_ERROR: type[Exception] = typer.BadParameter.__bases__[0]


def blocks(text: str, language: str) -> list[str]:
    """The page's pieces of code in one language."""
    return [body for said, body in FENCE.findall(text) if said == language]


def sections(text: str) -> list[str]:
    """Returns the text under each heading of the second level, and before the first."""
    return re.split(r"^## ", text, flags=re.MULTILINE)


def calls(text: str) -> Iterator[list[str]]:
    """Every command of the shell blocks as its words, those behind pipes too; and each `fleet …` in prose."""
    code = "\n".join(blocks(text, "sh")).replace("\\\n", " ").splitlines()
    for line in code + re.findall(r"`((?:fleet|kubectl|streamfleet) [^`\n]+)`", FENCE.sub("", text)):
        call: list[str] = []
        kept = re.sub(r"^\w+=\$\((.*)\)$", r"\1", line)  # a variable gets what it prints
        for word in [*shlex.split(kept, comments=True), "|"]:
            if word in ENDS:
                if call:
                    yield call
                call = []
            else:
                call.append(word.removesuffix(";"))


def kubectl_calls(text: str) -> list[list[str]]:
    """The words behind every `kubectl`."""
    return [call[call.index("kubectl") + 1 :] for call in calls(text) if "kubectl" in call]


def option(call: list[str], name: str) -> str | None:
    """The value of an option in its long form."""
    if name in call[:-1]:
        return call[call.index(name) + 1]
    return next((word.partition("=")[2] for word in call if word.startswith(f"{name}=")), None)


@cache
def of_overlay(block: str) -> list[Manifest]:
    """The manifests of a kustomization that the page shows, less its namespace; copy before changing one."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(K8S, Path(folder) / "k8s")
        overlay = Path(folder) / "fleet"
        overlay.mkdir()
        (overlay / "kustomization.yaml").write_text(REF.sub(r"\1", block).replace(OURS, "../"), encoding="utf-8")
        found = render(overlay)
    for each in found:
        assert each["metadata"].pop("namespace") == NAMESPACE
    return found


@cache
def rules_broken_by(block: str) -> list[str]:
    """Returns the faults of a kustomization that the page shows; manifests of ours in it have tests of their own."""
    found = of_overlay(block)
    wrong = [line for each in found if each not in everything() for line in schema([each])]
    return wrong or [line for rule in RULES if rule is not schema for line in rule(found)]


@cache
def of_folder(folder: str) -> list[Manifest]:
    """The manifests of a folder of this repository; copy before changing one."""
    return render(ROOT / folder)


def overlays(text: str) -> list[str]:
    """The kustomizations that a text shows, less the comment with their path."""
    found = [block for block in blocks(text, "yaml") if "kind: Kustomization" in block]
    return [block.partition("\n")[2] if block.startswith("#") else block for block in found]


def rendered(text: str) -> list[list[Manifest]]:
    """Returns the manifests that a text applies: folders of this repository, and overlays that are shown."""
    folders = {found for found in APPLIED.findall("\n".join(blocks(text, "sh"))) if found.startswith("k8s/")}
    return [*map(of_folder, sorted(folders)), *map(of_overlay, overlays(text))]


@cache
def everything() -> list[Manifest]:
    """The manifests of everything that can be applied."""
    folders = [*kustomizations().values(), K8S / "first-request"]
    return [each for folder in folders for each in of_folder(str(folder.relative_to(ROOT)))]


def names_of(manifests: list[Manifest]) -> set[str]:
    """kind/name of everything that a cluster has after an apply: pods and claims of StatefulSets too."""
    found = {f"{each['kind'].lower()}/{name_of(each)}" for each in manifests}
    for each in of_kind(manifests, "StatefulSet"):
        for number in range(each["spec"]["replicas"]):
            found.add(f"pod/{name_of(each)}-{number}")
            claims = each["spec"].get("volumeClaimTemplates", [])
            found |= {f"persistentvolumeclaim/{name_of(claim)}-{name_of(each)}-{number}" for claim in claims}
    # Generated ones have a hash behind their name.
    return found | {re.sub(r"-[0-9a-z]{10}$", "", name) for name in found if name.startswith("configmap/")}


def made_by_hand(text: str) -> set[str]:
    """kind/name of everything that a command creates."""
    found = [call for call in kubectl_calls(text) if call[0] == "create"]
    secrets = {f"secret/{call[3]}" for call in found if call[1] == "secret" and call[2] in ("generic", "tls")}
    return secrets | {f"{call[1]}/{call[2]}" for call in found if call[1] in ("configmap", "namespace")}


def lost_paths(text: str) -> list[str]:
    """Paths of this repository that do not exist."""
    named = set(re.findall(rf"(?<![\w/.$-])(?:\.\./)?({FOLDERS}/[\w./-]*\w)", text))
    named |= set(re.findall(rf"{re.escape(OURS)}([^\s?]+)", text))
    return [path for path in sorted(named) if not (ROOT / path).exists()]


def broken_overlays(text: str) -> list[str]:
    """Folders to apply that are none of ours and not shown before, and kustomizations of the page that break a rule."""
    known = {str(folder.relative_to(ROOT)) for folder in kustomizations().values()} | {"k8s/first-request"}
    known |= set(re.findall(r"^# (\w+)/kustomization\.yaml$", text, re.MULTILINE))
    wrong = [path for path in APPLIED.findall("\n".join(blocks(text, "sh"))) if path not in known]
    return wrong + [line for block in overlays(text) for line in rules_broken_by(block)]


def broken_values(text: str) -> list[str]:
    """Values of the page that the chart refuses, or whose manifests break a rule."""
    (first,) = (yaml.safe_load(block) for block in blocks(text, "yaml") if block.startswith(VALUES))
    added = [yaml.safe_load(block) for block in blocks(text, "yaml") if block.startswith(ADDED)]
    wrong = []
    for values in (first, *(merged(first, each) for each in added)):
        why = refusal_of(values)
        wrong += [why] if why else broken_rules(charted(values=values))
    return wrong


def unknown_names(text: str) -> list[str]:
    """Objects of a kubectl command that are not in what its section applies."""
    wrong, by_hand = [], made_by_hand(text)
    for section in sections(text):
        applied = [each for manifests in rendered(section) for each in manifests] or everything()
        known = names_of(applied) | by_hand
        for call in kubectl_calls(section):
            ours = call[: call.index("--")] if "--" in call else call
            if option(ours, "--namespace") == NAMESPACE:
                found = [re.fullmatch(r"([a-z]+)/([a-z0-9-]+)", word) for word in ours]
                wrong += [each[0] for each in found if each and each[0] not in known]
    return wrong


def jobs(manifests: list[Manifest]) -> list[Manifest]:
    """Returns the Jobs, which run once."""
    return of_kind(manifests, "Job")


def unknown_images(text: str) -> list[str]:
    """Images that no target of the Dockerfile makes, and such that no pod of ours runs."""
    targets = set(re.findall(r"^FROM \S+ AS (\S+)$", DOCKERFILE.read_text(encoding="utf-8"), re.MULTILINE))
    pods = [pod_of(each) for each in [*workloads(everything()), *jobs(everything())]]
    run = {container["image"] for pod in pods for container in pod["containers"]}
    wrong = []
    for call in (call for call in calls(text) if call[0] in ("docker", "kind", "kubectl")):
        if call[:2] == ["docker", "build"] and option(call, "--target") not in targets:
            wrong.append(f"target {option(call, '--target')}")
        images = {word.removeprefix("registry.example/") for word in call if re.search(r"\w:[\d.]+[\w.-]*$", word)}
        wrong += sorted(images - run)
        wrong += [call[-1]] if call[:2] == ["docker", "build"] and call[-1] != "." else []
    return wrong


def refused_commands(text: str) -> list[str]:
    """Command lines of streamfleet that it would not take."""
    wrong = []
    for call in calls(text):
        inside = call[call.index("--") + 1 :] if call[0] == "kubectl" and "--" in call else call
        inside = call[4:] if call[:3] == ["docker", "compose", "exec"] else inside
        if inside[0] in ("fleet", "streamfleet") and inside[1:] not in ([], ["$@"], ["…"]):
            wrong += [f"{' '.join(inside)}: {why}" for why in refusal(inside[1:])]
    return wrong


@cache
def program() -> Any:
    """The command line."""
    return typer.main.get_command(app)


def refusal(words: list[str]) -> list[str]:
    """The command line's refusal of these words; empty when it takes them."""
    command = program()
    while hasattr(command, "commands"):
        if not words or words[0] not in command.commands:
            return ["no such command"]
        command, words = command.commands[words[0]], words[1:]
    try:
        command.make_context("streamfleet", list(words))
    except USAGE_ERROR as error:
        return [str(error)]
    return []


CHECKS = (
    lost_paths,
    broken_overlays,
    broken_values,
    unknown_names,
    unknown_images,
    refused_commands,
)
