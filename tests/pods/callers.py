"""Steps with the gateway: OpenAI's API and the page, asked from outside of the pods, and by name from inside."""

from __future__ import annotations

import re

import httpx

from tests.pods.pod import Pod
from tests.pods.stage import GATEWAY, Stage, check

CHAT = "/v1/chat/completions"
ASK = {"model": "qwen", "messages": [{"role": "user", "content": "Say hi"}], "max_tokens": 8}
BY_NAME = (
    "import http.client, sys; c = http.client.HTTPConnection(sys.argv[1], 8080, timeout=10); "
    "c.request('GET', '/v1/models'); print(c.getresponse().status)"
)


class Callers:
    """Callers of the two gateways by the example gateway.

    Args:
        stage: where.
    """

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self.key = ""

    def gateways(self) -> str:
        """Two gateways; a key; chat, a stream and the page from each of them; metrics are not among it."""
        seconds = self._stage.gateways.scale(2)
        self.key = re.findall(r"sf-\S+", self._stage.fleet("gateway", "keys", "create", "check"))[0]
        for pod in self._stage.gateways.pods:
            self._asked(pod)
        inside = self._stage.container("-c", BY_NAME, GATEWAY, program="python3").strip()
        check(inside == "401", f"by its Service's name, without a key: {inside}")
        return f"two, ready after {max(seconds):.1f} s: models, chat, a stream, the page; by the Service's name too"

    def shared_files(self) -> str:
        """A file that one gateway took is read from the other: the volume is both's."""
        first, second = self._stage.gateways.pods
        with self.http(first) as one, self.http(second) as other:
            line = b'{"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": {}}\n'
            taken = one.post("/v1/files", data={"purpose": "batch"}, files={"file": ("asks.jsonl", line)})
            check(taken.status_code == 200, f"upload: {taken.status_code} {taken.text}")
            read = other.get(f"/v1/files/{taken.json()['id']}/content")
            check(read.content == line, f"from the other: {read.status_code} {read.text[:200]}")
        return "uploaded to one, read from the other"

    def http(self, pod: Pod) -> httpx.Client:
        """A client of one gateway."""
        headers = {"Authorization": f"Bearer {self.key}"}
        return httpx.Client(base_url=f"http://{pod.address}:8080", headers=headers, timeout=30, trust_env=False)

    def _asked(self, pod: Pod) -> None:
        with self.http(pod) as client:
            models = [each["id"] for each in client.get("/v1/models").json()["data"]]
            check(models == ["qwen"], f"models: {models}")
            answer = client.post(CHAT, json=ASK)
            check(answer.status_code == 200, f"chat: {answer.status_code} {answer.text[:300]}")
            stream = client.post(CHAT, json={**ASK, "stream": True}).text
            check(stream.rstrip().endswith("data: [DONE]"), f"the stream ends with {stream[-200:]!r}")
            page = client.get("/ui", follow_redirects=True)
            check(page.status_code == 200 and "<html" in page.text, f"the page: {page.status_code}")
            check(client.get("/metrics").status_code == 404, "metrics are shown to callers")
