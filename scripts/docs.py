"""Build the documentation site.

    python scripts/docs.py [--output build/site]

The pages are README.md, those below docs/ and a few others of this repository (`PAGES`), as they
are. They are copied to build/documentation with links that fit the site, with formulas as MathML
and with a page for each source file and folder that is linked to; Zensical renders them
(zensical.toml). The build fails if a link or an anchor leads nowhere, or if a page would fetch
anything from another host. Nothing here needs a network. The site can be read from disk; its search
needs a server, for example `python -m http.server --directory build/site`.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from latex2mathml.converter import convert

import kstep
from kstep import zoo

ROOT = Path(__file__).parents[1]
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
    "src/kstep/native/README.md": "native.md",
    "tests/authors/README.md": "authors_traces.md",
    **{f"src/kstep/zoo/{name}/README.md": f"zoo/{name}.md" for name in zoo.agents()},
}
"""Pages from outside docs/, and their places on the site."""
LANGUAGES = {".py": "python", ".toml": "toml", ".sh": "sh", ".cpp": "cpp", ".h": "cpp", ".cff": ""}
"""Source files that get a page when they are linked to; any other file is copied."""

CODE = re.compile(r"(^```.*?^```$|`[^`\n]+`)", flags=re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^()\s]+)\)")
FORMULA = re.compile(r"\$\$(.+?)\$\$|\$([^$\n](?:[^$]*[^$\s])?)\$", flags=re.DOTALL)


class Assembly:
    """The pages on their way to one folder; `linked` collects what is only linked to."""

    def __init__(self, target: Path) -> None:
        self.target = target
        self.linked: set[Path] = set()

    def write(self) -> None:
        shutil.rmtree(self.target, ignore_errors=True)
        sources = {ROOT / name for name in PAGES}
        for path in sorted((ROOT / "docs").rglob("*")):
            if path.suffix == ".md":
                sources.add(path)
            elif path.is_file():
                self.copy(path, path.relative_to(ROOT / "docs"))
        for path in sorted(sources):
            self.page(self.place(path), self.text(path))
        shown: set[Path] = set()
        while todo := self.linked - shown:  # a folder's list links to more
            for path in sorted(todo):
                self.shown(path)
            shown |= todo
        self.page(Path("reference.md"), reference())

    def place(self, path: Path) -> Path:
        """Return where something of the repository is on the site, relative to its root."""
        name = path.relative_to(ROOT).as_posix()
        if name in PAGES:
            return Path(PAGES[name])
        if path.is_dir():
            if (path / "README.md").is_file():
                return self.place(path / "README.md")
            self.linked.add(path)
            return self._inside(path) / "index.md"
        if path.suffix in LANGUAGES:
            self.linked.add(path)
            return self._inside(path.with_name(f"{path.name}.md"))
        if not path.is_relative_to(ROOT / "docs"):
            self.linked.add(path)
        return self._inside(path)

    def _inside(self, path: Path) -> Path:
        if path.is_relative_to(ROOT / "docs"):
            return path.relative_to(ROOT / "docs")
        return "files" / path.relative_to(ROOT)

    def text(self, path: Path) -> str:
        """Return a page's text with links that lead to places of the site, and MathML."""
        parts = CODE.split(path.read_text())
        return "".join(
            part if number % 2 else self.rewritten(part, path) for number, part in enumerate(parts)
        )

    def rewritten(self, prose: str, path: Path) -> str:
        """Rewrite links and formulas of text without code from the page at `path`."""

        def link(found: re.Match[str]) -> str:
            parts = urlsplit(found[1])
            if parts.scheme or not parts.path:
                return found[0]
            to = (path.parent / unquote(parts.path)).resolve()
            if not to.exists() or not to.is_relative_to(ROOT):
                raise SystemExit(f"{path.relative_to(ROOT)} links to {found[1]}, which is not here")
            relative = os.path.relpath(self.place(to), self.place(path).parent)
            return f"]({relative}{'#' * bool(parts.fragment)}{parts.fragment})"

        return LINK.sub(link, FORMULA.sub(mathml, prose))

    def shown(self, path: Path) -> None:
        """Make a page of a source file, a list of a folder, and a copy of anything else."""
        name, place = path.relative_to(ROOT), self.place(path)
        if path.is_dir():
            files = sorted(file for file in path.iterdir() if file.is_file())
            links = {file: os.path.relpath(self.place(file), place.parent) for file in files}
            pictures = [file for file in files if file.suffix == ".png"]
            rest = "\n".join(f"- [{f.name}]({links[f]})" for f in files if f not in pictures)
            drawn = (f"![{file.name}]({links[file]})" for file in pictures)
            self.page(place, "\n\n".join([f"# {name}", rest, *drawn]))
        elif path.suffix in LANGUAGES:
            language = LANGUAGES[path.suffix]
            self.page(place, f"# {name}\n\n````{language}\n{path.read_text()}\n````\n")
        else:
            self.copy(path, place)

    def page(self, place: Path, text: str) -> None:
        (self.target / place).parent.mkdir(parents=True, exist_ok=True)
        (self.target / place).write_text(text)

    def copy(self, path: Path, place: Path) -> None:
        (self.target / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, self.target / place)


def mathml(found: re.Match[str]) -> str:
    """Return a formula as MathML, in one line that Markdown leaves alone."""
    block = found[1] is not None
    formula = " ".join((found[1] or found[2]).split())
    markup = convert(formula, display="block" if block else "inline").replace("\n", "")
    for character in "\\`*_[]|":
        markup = markup.replace(character, f"&#{ord(character)};")
    return f'<div class="math">{markup}</div>' if block else f"<span>{markup}</span>"


def reference() -> str:
    """Return the page of everything public, from its docstrings."""
    names = [name for name in kstep.__all__ if not name.startswith("_")]
    head = "Made from the docstrings of all that is public; [Python API](api.md) explains it with "
    return "\n\n".join(
        ["# Reference", f"{head}examples.", *(f"::: kstep.{name}" for name in names)]
    )


class Links(HTMLParser):
    """What a page of the site names, links to, and loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        named = {key: value for key, value in attributes if value}
        self.anchors |= {named[key] for key in ("id", "name") if key in named}
        if tag == "a" and "href" in named:
            self.links.append(named["href"])
        elif tag == "link" and named.get("rel") not in ("canonical", "prev", "next"):
            self.loads.append(named.get("href", ""))
        elif "src" in named:
            self.loads.append(named["src"])


def broken(site: Path) -> Iterator[str]:
    """Yield a sentence for each link of a built site that leads nowhere, and for each request that
    would leave it."""
    pages = {path: Links(path.read_text()) for path in sorted(site.rglob("*.html"))}
    for path, page in pages.items():
        if path.name == "404.html":
            continue
        for address in (*page.links, *page.loads):
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                if address in page.loads and parts.scheme != "data":
                    yield f"{path.relative_to(site)} loads {address}"
                continue
            to = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            to = to / "index.html" if to.is_dir() else to
            if not to.is_file():
                yield f"{path.relative_to(site)} links to {address}"
            elif parts.fragment and to in pages and parts.fragment not in pages[to].anchors:
                yield f"{path.relative_to(site)} links to {address}: no such heading"


def build(output: Path, work: Path) -> list[str]:
    """Build the site in `output` by way of the folder `work`; return what is wrong with its links.

    Zensical has pages and site below the folder of its settings, so that is copied to `work`.
    """
    Assembly(work / "docs").write()
    shutil.rmtree(work / "site", ignore_errors=True)
    settings = (ROOT / "zensical.toml").read_text()
    (work / "zensical.toml").write_text(settings.replace('["src"]', f'["{ROOT / "src"}"]'))
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean"]
    subprocess.run(command, cwd=work, check=True)
    shutil.rmtree(output, ignore_errors=True)
    shutil.copytree(work / "site", output)
    return [*broken(output)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "site")
    output = parser.parse_args().output
    if wrong := build(output, ROOT / "build" / "documentation"):
        sys.exit("\n".join(wrong))
    print(
        f"{output / 'index.html'}: {len([*output.rglob('*.html')])} pages, all links lead somewhere"
    )
    print(f"its search needs a server: python -m http.server --directory {output}")


if __name__ == "__main__":
    main()
