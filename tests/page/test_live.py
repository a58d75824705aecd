"""`kstep watch` without a browser: what it sends, whom it answers, and how it ends."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from starlette.datastructures import Headers

from kstep.cli import main
from kstep.report.live import guard, newest, server
from kstep.report.page import gather, records
from kstep.report.page.data import plain
from kstep.run import on_demand
from kstep.run.folder import RunFolder
from kstep.types import KstepError
from tests.make import HANGING
from tests.page.test_gather import made, section

DATA = Path(__file__).parents[1] / "data" / "page"
ADDRESS = "http://127.0.0.1:"


@dataclass
class Watched:
    """A process of `kstep watch`."""

    process: subprocess.Popen[str]
    port: int
    token: str
    said: list[str]

    def ask(
        self,
        path: str = "/",
        method: str = "GET",
        headers: Mapping[str, str] | None = None,
        *,
        token: str | None = None,
    ) -> tuple[int, dict[str, str], bytes]:
        """Send a request as it is, without anything that a browser would correct."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=HANGING)
        own = self.token if token is None else token
        try:
            connection.putrequest(method, f"/{own}{path}", skip_host=True)
            for name, value in {"Host": f"127.0.0.1:{self.port}", **(headers or {})}.items():
                connection.putheader(name, value)
            connection.endheaders()
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return answer.status, found, answer.read()
        finally:
            connection.close()


@contextmanager
def watching(*words: str) -> Iterator[Watched]:
    """Run `kstep watch` on any free port until the block ends."""
    command = [sys.executable, "-m", "kstep", "watch", *words, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            said = []
            for line in process.stdout:
                said.append(line.strip())
                if line.startswith(ADDRESS):
                    break
            port, token, end = said[-1].removeprefix(ADDRESS).split("/")
            assert (token, end) == (token.strip(), "")
            yield Watched(process, int(port), token, said)
        finally:
            process.kill()


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    root = tmp_path_factory.mktemp("watched")
    shutil.copytree(DATA, root / "runs")
    (root / "secret.txt").write_text("secret")
    (root / "secret.mp4").write_text("secret")
    (run,) = (root / "runs").glob("*/*/ksl-debug/seed3")
    (run / "films").symlink_to(root)
    (other,) = (root / "runs").glob("*/*/ksl-debug/seed1")
    (other / "films" / "9.mp4").symlink_to(root / "secret.mp4")
    with watching(str(root / "runs")) as found:
        yield found


def films_of(watched: Watched) -> list[str]:
    news = json.loads(watched.ask("/data.json")[2])["data"]
    return [film["address"] for part in news["sections"] for film in part.get("films", ())]


def test_the_page_is_the_reports_and_asks_for_the_same_data(watched: Watched) -> None:
    status, headers, page = watched.ask()
    assert status == 200
    assert b'"served":true' in page
    assert watched.said[0] == "watching 5 runs of 2 methods on 1 task"
    policy = dict(part.split(" ", 1) for part in headers["content-security-policy"].split("; "))
    assert policy["default-src"] == policy["frame-ancestors"] == "'none'"
    assert policy["connect-src"] == "'self'"
    assert "http" not in headers["content-security-policy"]
    status, headers, text = watched.ask("/data.json")
    assert status == 200
    news = json.loads(text)
    data: Any = plain(gather.gather([DATA]))
    for kind in ("styles", "facts", "summary"):
        assert news["data"][kind] == data[kind]
    # All but films, which are not part of this page.
    ours, theirs = (
        {part["name"]: part for part in found["sections"] if part["name"] != "films"}
        for found in (news["data"], data)
    )
    assert ours == theirs
    assert watched.ask(f"/data.json?known={news['version']}")[0] == 204
    # Of another process, or of nobody: everything.
    for known in ("00000000-1", "x", "-1", f"{news['version']}9", "9" * 4000):
        assert watched.ask(f"/data.json?known={known}")[0] == 200


def test_every_answer_forbids_other_pages_to_use_it(watched: Watched) -> None:
    for path, token in (("/", None), ("/data.json", None), ("/nothing", None), ("/", "wrong")):
        _, headers, _ = watched.ask(path, token=token)
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert headers["cache-control"] == "no-store"
        assert not [name for name in headers if name.startswith("access-control")]
        assert "server" not in headers


def test_films_are_served_in_pieces_too(watched: Watched) -> None:
    addresses = films_of(watched)
    assert len(addresses) == 4  # no link is followed
    status, headers, whole = watched.ask(f"/{addresses[0]}")
    assert (status, headers["content-type"]) == (200, "video/mp4")
    status, _, part = watched.ask(f"/{addresses[0]}", headers={"Range": "bytes=10-19"})
    assert (status, part) == (206, whole[10:20])


@pytest.mark.parametrize(
    "host",
    ["example.org", "127.0.0.1.example.org:80", "localhost.example.org", "0.0.0.0", "[::1]", "",
     "127.0.0.1@example.org", "localhost:80:80", "localhost:x", "1.127.0.0.1"],
)  # fmt: skip
def test_other_hosts_are_refused(watched: Watched, host: str) -> None:
    status, _, text = watched.ask(headers={"Host": host})
    assert (status, b"secret" in text) in ((421, False), (400, False))


def test_names_of_this_machine_are_answered(watched: Watched) -> None:
    """Also under another port, as at the near end of a tunnel."""
    for host in (f"localhost:{watched.port}", "localhost:9", "127.0.0.1:9", "LOCALHOST"):
        assert watched.ask(headers={"Host": host})[0] == 200


def test_two_hosts_are_refused(watched: Watched) -> None:
    with socket.create_connection(("127.0.0.1", watched.port), timeout=HANGING) as line:
        hosts = "Host: localhost\r\nHost: example.org\r\n"
        line.sendall(f"GET /{watched.token}/ HTTP/1.1\r\n{hosts}\r\n".encode())
        assert line.recv(4096).split()[1] in (b"400", b"421")


@pytest.mark.parametrize("token", ["", "wrong", "%00", "..", "ü"])
def test_without_the_token_nothing_is_answered(watched: Watched, token: str) -> None:
    quoted = token.encode("latin-1").decode("latin-1") if token.isascii() else "%C3%BC"
    for path in ("/", "/data.json", f"/{films_of(watched)[0]}", f"/../{watched.token}/"):
        assert watched.ask(path, token=quoted)[0] == 403
    longer, shorter = f"{watched.token}x", watched.token[:-1]
    for wrong in (longer, shorter, watched.token.swapcase()):
        assert watched.ask(token=wrong)[0] == 403


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://example.org"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Origin": "https://127.0.0.1:{port}"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "whatever"},
        {"Origin": "http://127.0.0.1:{port}", "Sec-Fetch-Site": "cross-site"},
    ],
)
def test_requests_of_other_pages_are_refused(watched: Watched, headers: dict[str, str]) -> None:
    own = {name: value.format(port=watched.port) for name, value in headers.items()}
    for method, path in (("GET", "/"), ("GET", "/data.json"), ("POST", "/stop/x")):
        status, found, _ = watched.ask(
            path, method, {**own, "X-Kstep-Token": watched.token, "Content-Length": "0"}
        )
        assert status == 403
        assert not [name for name in found if name.startswith("access-control")]


def test_its_own_requests_are_answered(watched: Watched) -> None:
    own = {"Origin": f"http://127.0.0.1:{watched.port}", "Sec-Fetch-Site": "same-origin"}
    assert watched.ask("/data.json", headers=own)[0] == 200
    assert watched.ask("/", headers={"Sec-Fetch-Site": "none"})[0] == 200


@pytest.mark.parametrize(
    "path",
    ["/../../etc/passwd", "/films/../../secret.txt", "/films/..%2f..%2fsecret.txt",
     "/films/%2e%2e/%2e%2e/secret.txt", "/films//etc/passwd", "/films/", "/films/secret.mp4",
     "/films/..\\..\\secret.txt", "/films/%00", "/index.html", "/runs", "/config.json",
     "//etc/passwd", "/films/x?path=../../secret.txt", "/data.json/..", "/stop/x", "/page.js"],
)  # fmt: skip
def test_nothing_else_is_served(watched: Watched, path: str) -> None:
    status, _, text = watched.ask(path)
    assert status in (404, 405)
    assert b"secret" not in text
    assert b"root:" not in text


@pytest.mark.parametrize("method", ["OPTIONS", "PUT", "DELETE", "PATCH", "TRACE", "CONNECT"])
def test_other_methods_are_refused(watched: Watched, method: str) -> None:
    for path in ("/", "/stop/x"):
        status, headers, _ = watched.ask(path, method, {"X-Kstep-Token": watched.token})
        assert status in (400, 405)
        assert not [name for name in headers if name.startswith("access-control")]


def test_a_run_is_stopped_only_with_the_token_in_a_header(watched: Watched) -> None:
    asked = {"Content-Length": "0"}
    assert watched.ask("/stop/x", "POST", asked)[0] == 403
    assert watched.ask("/stop/x", "POST", {**asked, "X-Kstep-Token": "wrong"})[0] == 403
    assert watched.ask("/stop/x", "GET", {"X-Kstep-Token": watched.token})[0] == 405
    status, _, text = watched.ask("/stop/x", "POST", {**asked, "X-Kstep-Token": watched.token})
    assert (status, text) == (409, b"this run is not being trained.")


def test_it_listens_on_the_loopback_address_alone(watched: Watched) -> None:
    """In /proc/net, addresses are hexadecimal and 0A is the state of listening."""
    rows = [line.split() for name in ("tcp", "tcp6") for line in _listed(name)]
    own = [row[1] for row in rows if row[3] == "0A" and row[1].endswith(f":{watched.port:04X}")]
    assert own == [f"0100007F:{watched.port:04X}"]


def _listed(name: str) -> list[str]:
    try:
        return Path(f"/proc/net/{name}").read_text().splitlines()[1:]
    except FileNotFoundError:  # a machine without IPv6
        return []


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 143)])
def test_ctrl_c_ends_it_while_a_page_is_open(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    made(tmp_path, "ksl", "walker_walk", 1, [1.0, 2.0, 3.0])
    with watching(str(tmp_path)) as watched:
        connection = HTTPConnection("127.0.0.1", watched.port, timeout=HANGING)
        connection.request("GET", f"/{watched.token}/data.json")
        connection.getresponse().read()  # and stays connected, as browsers do
        watched.process.send_signal(number)
        rest, _ = watched.process.communicate(timeout=HANGING)
        assert watched.process.returncode == code
        assert ("no longer watching; the runs continue" in rest) == (code == 0)


def test_a_busy_port_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made(tmp_path, "ksl", "walker_walk", 1, [1.0])
    with server.listening(0) as taken:
        port = str(taken.getsockname()[1])
        with pytest.raises(SystemExit) as ended:
            main(["watch", str(tmp_path), "--port", port])
    assert ended.value.code == 2
    assert f"port {port} is in use by another program: choose another" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["watch", str(tmp_path), "--port", "65536"])
    with pytest.raises(SystemExit):
        main(["watch", str(tmp_path / "nowhere")])
    assert "nowhere does not exist" in capsys.readouterr().err


def test_only_what_has_changed_is_read_and_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = made(tmp_path, "ksl", "walker_walk", 1, [1.0, 2.0])
    made(tmp_path, "ksl", "cheetah_run", 1, [1.0, 2.0, 3.0])
    read: list[Path] = []
    original = records.of_folder

    def noted(path: Path) -> records.Record:
        read.append(path)
        return original(path)

    monkeypatch.setattr(records, "of_folder", noted)
    found = newest.Newest([tmp_path])
    assert len(read) == 2
    news = json.loads(found.news("") or "")
    assert found.news(news["version"]) is None
    read.clear()
    found.refresh()
    assert not read
    before = first.evaluations_file.read_text()
    row = {**json.loads(before.splitlines()[-1]), "mark": 100_000, "env_steps": 100_000}
    first.evaluations_file.write_text(before + json.dumps(row) + "\n")
    found.refresh()
    assert read == [first.folder]
    after = json.loads(found.news(news["version"]) or "")
    figures = {
        figure["name"]: figure
        for part in after["data"]["sections"]
        for figure in part.get("figures", ())
    }
    assert figures["curve-cheetah_run"] == {"name": "curve-cheetah_run", "same": True}
    assert figures["curve-walker_walk"]["lines"][0]["x"]["env_steps"] == [0, 50_000, 100_000]
    # Whoever knows nothing is sent everything, and that is what a report would show.
    everything = json.loads(found.news("") or "")["data"]
    wanted: Any = plain(gather.gather([tmp_path]))
    assert everything["sections"] == wanted["sections"]


def test_runs_may_begin_later_and_be_removed(tmp_path: Path) -> None:
    found = newest.Newest([tmp_path])
    assert found.state.summary == "no runs"
    run = made(tmp_path, "ksl", "walker_walk", 1, [1.0])
    found.refresh()
    assert found.state.summary.startswith("1 run of 1 method")
    shutil.rmtree(run.folder)
    found.refresh()
    assert found.state.summary == "no runs"
    with pytest.raises(KstepError, match="does not exist"):
        newest.Newest([tmp_path / "nowhere"])


def test_what_cannot_be_read_any_more_is_an_alarm_beside_what_was_known(tmp_path: Path) -> None:
    made(tmp_path / "runs", "ksl", "walker_walk", 1, [1.0, 2.0])
    found = newest.Newest([tmp_path / "runs"])
    version = json.loads(found.news("") or "")["version"]
    found.lament("the disk is away")
    news = json.loads(found.news(version) or "")
    assert news["data"]["alarms"] == [
        "What is shown is not the newest, which cannot be read: the disk is away."
    ]
    found.lament("the disk is away")
    assert found.news(news["version"]) is None
    found.refresh()
    assert "alarms" not in json.loads(found.news(news["version"]) or "")["data"]


def test_only_the_process_that_holds_the_lock_is_interrupted(tmp_path: Path) -> None:
    run = made(tmp_path, "ksl", "walker_walk", 1, [1.0])
    with pytest.raises(KstepError, match="no process on this machine is training"):
        on_demand.interrupt(run)
    holding = (
        "import signal, sys; from pathlib import Path; from kstep.run.folder import RunFolder\n"
        "with RunFolder(Path(sys.argv[1])).locked():\n"
        "    print('held', flush=True)\n"
        "    try:\n"
        "        signal.pause()\n"
        "    except KeyboardInterrupt:\n"
        "        sys.exit(17)\n"
    )
    command = [sys.executable, "-c", holding, str(run.folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        # The file's words are anybody's: a number that is not the holder's is not believed.
        number = run.lock_file.read_text()
        run.lock_file.write_text(str(os.getpid()))
        with pytest.raises(KstepError, match="no process on this machine is training"):
            on_demand.interrupt(run)
        run.lock_file.write_text(number)
        assert on_demand.interrupt(run) == process.pid
        assert process.wait(HANGING) == 17


def test_the_same_run_is_not_interrupted_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second Ctrl-C would end it without a checkpoint."""
    run = made(tmp_path, "ksl", "walker_walk", 1, [1.0, 2.0])
    sent: list[Path] = []

    def noted(run: RunFolder) -> int:
        sent.append(run.folder)
        return os.getpid()

    with run.locked():
        found = newest.Newest([tmp_path])
        (name,) = found.state.running
        monkeypatch.setattr(on_demand, "interrupt", noted)
        for _ in range(3):
            assert found.stop(name).startswith(f"Process {os.getpid()} was asked to stop")
        found.refresh()
        (live,) = found.state.top["live"]
        assert "address" not in live  # the page has nothing to press any more
    assert sent == [run.folder]


def test_a_run_that_is_trained_shows_its_time_left(tmp_path: Path) -> None:
    run = made(tmp_path, "ksl", "walker_walk", 1, [1.0, 2.0])
    ticks = [
        {"process": "2026-01-01T00:00:00.000+00:00", "decisions": at, "env_steps": at,
         "seconds": at / 100, "core_seconds": 1.0}
        for at in (0, 25_000, 50_000)
    ]  # fmt: skip
    run.clock_file.write_text("".join(json.dumps(tick) + "\n" for tick in ticks))
    with run.locked():
        (live,) = newest.Newest([tmp_path]).state.top["live"]
    assert live["left"] == "8:20"  # 50,000 env steps at 100 a second
    assert (live["env_steps"], live["budget"], live["score"]) == (50_000, 100_000, "2.0")


def test_films_in_a_linked_folder_are_nobodys(tmp_path: Path) -> None:
    run = made(tmp_path / "runs", "ksl", "walker_walk", 1, [1.0])
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "private.mp4").write_bytes(b"private")
    (run.folder / "films").symlink_to(tmp_path / "mine")
    data = gather.gather([tmp_path / "runs"])
    assert "films" not in {part.name for part in data.sections}
    assert section(data, "runs") is not None


def test_tokens_are_compared_whatever_they_hold() -> None:
    headers = Headers({"host": "localhost"})
    assert guard.refusal("GET", "/tökén/", headers, "token") is not None
    assert guard.refusal("GET", "", headers, "token") is not None
    assert guard.refusal("GET", "/token/", headers, "token") is None
