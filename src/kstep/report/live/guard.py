"""Which requests are answered: those of the page itself, for whoever was given its address.

The server listens on the loopback address, where every user of the machine and every page that is
open in a browser can send requests. Three things keep them out:

- A token in the address, which is printed once and can be guessed by nobody. What changes anything
  needs it in a header as well: a form cannot set one, and the script of another site only if we
  agreed.
- The `Host` must be this machine's own name. So a name of somebody else's that is made to lead here
  (DNS rebinding) is of no use: its pages would count as ours.
- What a browser says about the page behind a request (`Origin`, `Sec-Fetch-Site`). Nothing is
  answered for another one, and no answer allows one to read it.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import MutableMapping
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

TOKEN_HEADER = "x-kstep-token"
METHODS = ("GET", "HEAD", "POST")
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Of every answer; the page has a policy of its own."""

# Any port: it is another one at the near end of a tunnel (ssh -L).
_HERE = re.compile(r"(127\.0\.0\.1|localhost)(:[0-9]{1,5})?", re.ASCII)


def refusal(method: str, path: str, headers: Headers, token: str) -> tuple[int, str] | None:
    """Return why a request is refused, as a status and a sentence; None if it is answered."""
    hosts = headers.getlist("host")
    if len(hosts) != 1 or not _HERE.fullmatch(hosts[0].lower()):
        return 421, "Only 127.0.0.1 and localhost are names of this server."
    if method not in METHODS:
        return 405, "This server answers GET, HEAD and POST."
    origins, sites = headers.getlist("origin"), headers.getlist("sec-fetch-site")
    if any(origin.lower() != f"http://{hosts[0].lower()}" for origin in origins) or any(
        site not in ("same-origin", "none") for site in sites
    ):
        return 403, "Another page asked for this. Type or paste the address instead."
    given = path.split("/", 2)[1] if path.startswith("/") else ""
    if not _same(given, token):
        return 403, "This is not the address that kstep watch printed."
    if method == "POST" and not _same(headers.get(TOKEN_HEADER, ""), token):
        return 403, "The request has no token."
    return None


def _same(given: str, token: str) -> bool:
    """Whether two texts are equal, in a time that does not depend on how much of them is."""
    return secrets.compare_digest(given.encode(), token.encode())


class Guard:
    """Passes on what is answered and refuses everything else."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app, self._token = app, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def guarded(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        refused = refusal(scope["method"], scope["path"], Headers(scope=scope), self._token)
        answer: ASGIApp = self._app
        if refused is not None:
            status, text = refused
            answer = PlainTextResponse(text, status)
        await answer(scope, receive, guarded)
