"""Receives webhooks, checks their signatures and prints them: `python examples/webhook_receiver.py FILE whsec_…`.

It listens on a free port of this machine and writes its address into FILE. Needs `pip install standardwebhooks`.
"""

import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

from standardwebhooks.webhooks import Webhook, WebhookVerificationError

SECRET = sys.argv[2]


class Hook(BaseHTTPRequestHandler):
    """Answers 204 to a webhook that is signed with the secret, 401 to any other."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        try:
            event = Webhook(SECRET).verify(body, {name.lower(): value for name, value in self.headers.items()})
        except (WebhookVerificationError, ValueError):  # ValueError: no text, or no base64
            self.send_response(401)
        else:
            print(f"{event['type']} {event['data']['id']}: its signature is right", flush=True)
            self.send_response(204)
        self.end_headers()


server = HTTPServer(("127.0.0.1", 0), Hook)
Path(sys.argv[1]).write_text(f"http://127.0.0.1:{server.server_port}/hook")
server.serve_forever()
