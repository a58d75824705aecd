"""The server of `kstep watch`: a page, its news, films and a way to stop a run; nothing else."""

from __future__ import annotations

import errno
import secrets
import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route

from kstep.report.live.guard import Guard
from kstep.report.live.newest import Newest
from kstep.report.page import films, html
from kstep.report.page.data import PageData
from kstep.types import KstepError

LOOPBACK = "127.0.0.1"
OFTEN, SHARE = 1.0, 5
"""Files are looked at again after so many seconds at the earliest, and after so many times as long
as it took the last time: whoever watches must not slow down those who train."""


class Refresher(threading.Thread):
    """Keeps what is shown new, as long as somebody asks for it."""

    def __init__(self, newest: Newest) -> None:
        super().__init__(daemon=True, name="kstep watch")
        self._newest = newest
        self._wanted = threading.Event()

    def want(self) -> None:
        self._wanted.set()

    def run(self) -> None:
        while True:
            self._wanted.wait()
            self._wanted.clear()
            started = time.monotonic()
            try:
                self._newest.refresh()
            except (KstepError, OSError) as error:  # a disk that is away may come back
                self._newest.lament(str(error))
            except Exception as error:
                traceback.print_exc()
                self._newest.lament(f"{type(error).__name__}: {error}")
            time.sleep(max(OFTEN, SHARE * (time.monotonic() - started)))


def application(newest: Newest, token: str, want: Callable[[], None], title: str = "") -> Guard:
    """Return the server as an ASGI application; `want` is called when a page asks for news."""

    def page(request: Request) -> Response:
        empty = PageData(title or "Results", newest.state.summary, (), (), {})
        policy = f"{html.policy(served=True)}; frame-ancestors 'none'"
        content = html.page(empty, served=True)
        return Response(
            content, media_type="text/html", headers={"Content-Security-Policy": policy}
        )

    def news(request: Request) -> Response:
        want()
        text = newest.news(request.query_params.get("known", "")[:100])
        return Response(text, 200 if text else 204, media_type="application/json")

    def film(request: Request) -> Response:
        path = newest.state.films.get(request.path_params["name"])
        if path is None or path.is_symlink() or not path.is_file():
            return PlainTextResponse("There is no such film.", 404)
        return FileResponse(path, media_type=films.KINDS[path.suffix])

    def stop(request: Request) -> Response:
        try:
            return PlainTextResponse(newest.stop(request.path_params["name"]))
        except KstepError as error:
            return PlainTextResponse(f"{error}.", 409)
        finally:
            want()

    def with_slash(request: Request) -> Response:  # the page's other addresses are relative
        return RedirectResponse(f"/{token}/")

    inside = [
        Route("/", page),
        Route("/data.json", news),
        Route("/films/{name}", film),
        Route("/stop/{name}", stop, methods=["POST"]),
    ]
    routes = [Route(f"/{token}", with_slash), Mount(f"/{token}", routes=inside)]
    return Guard(Starlette(routes=routes), token)


@contextmanager
def listening(port: int) -> Iterator[socket.socket]:
    """Take a port of this machine, which nobody can reach from another one; 0: any free one."""
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            taken.bind((LOOPBACK, port))
            taken.listen()
        except OSError as error:
            why = {errno.EADDRINUSE: "in use by another program", errno.EACCES: "the system's"}
            if error.errno not in why:
                raise
            raise KstepError(
                f"port {port} is {why[error.errno]}: choose another one with --port, or any that "
                "is free with --port 0"
            ) from error
        yield taken


def serve(newest: Newest, taken: socket.socket, say: Callable[[str], None], title: str) -> None:
    """Serve until Ctrl-C."""
    token = secrets.token_urlsafe(24)
    refresher = Refresher(newest)
    refresher.start()
    config = uvicorn.Config(
        application(newest, token, refresher.want, title),
        loop="asyncio",
        http="h11",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=1,
    )
    # It is not opened here: other users would see the token in the list of processes.
    say(f"http://{LOOPBACK}:{taken.getsockname()[1]}/{token}/")
    say("Open this address in a browser on this machine. Ctrl-C ends watching, not the runs.")
    uvicorn.Server(config).run(sockets=[taken])
