"""The page as one file: a template, its style and script, the plotting library and the data.

Everything that comes from run folders is data: a block of JSON that no browser executes and that
the script shows as text. The page's policy allows the two scripts that stand in it and no others,
and no request at all; where it is served, requests to its own server.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from functools import cache
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from kstep.files import write_atomically
from kstep.report.page.data import PageData, plain

PLOTLY = "plotly/plotly-gl3d.min.js"


def page(data: PageData, *, served: bool = False) -> str:
    """Return the page. `served`: it asks its server for newer data."""
    script, library = _shipped("page.js"), _shipped(PLOTLY)
    parts = {
        "policy": policy(served),
        "title": escape(data.title),
        "summary": escape(data.summary),
        "style": _shipped("page.css"),
        "data": in_script({**plain(data), "served": served}),
        "script": script,
        "library": library,
    }
    # In one pass: a text of somebody's may look like a place in the template.
    return re.sub(r"\{\{(\w+)\}\}", lambda place: parts[place[1]], _shipped("page.html"))


def policy(served: bool) -> str:
    """Return the content-security policy of the page."""
    hashes = " ".join(f"'sha256-{_sum(_shipped(name))}'" for name in ("page.js", PLOTLY))
    nothing = " 'none'"
    own = " 'self'" if served else ""
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; "
        f"img-src data: blob:{own}; media-src data:{own}; connect-src{own or nothing}; "
        "base-uri 'none'; form-action 'none'"
    )


def write(data: PageData, folder: Path) -> Path:
    """Write the page into a folder, completely or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "index.html"
    write_atomically(path, page(data).encode())
    return path


def in_script(value: Any) -> str:
    """Return a value for the inside of a <script>: no text in it can end the script, begin another
    or begin a comment, after which a browser would not see the script's end."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _sum(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


@cache
def _shipped(name: str) -> str:
    return files("kstep").joinpath("report", "page", name).read_text(encoding="utf-8")
