"""What installs, checks and cites the package: lock, hooks, citation."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import kstep

ROOT = Path(__file__).parents[2]


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def locked() -> dict[str, tuple[str, int]]:
    """Name -> version and number of hashes, as the lock has them."""
    entries = re.split(r"^(?=\w)", (ROOT / "requirements.lock").read_text(), flags=re.MULTILINE)[1:]
    return {
        canonicalize_name(name): (version, entry.count("--hash=sha256:"))
        for entry in entries
        for name, version in [re.split(r"==|[ \\\n]", entry, maxsplit=2)[:2]]
    }


def test_the_lock_has_what_is_asked_for_with_hashes_and_no_torch() -> None:
    asked = project()
    wanted = [Requirement(text) for text in asked["project"]["dependencies"]]
    for extra in ("tb", "wandb", "onnx", "sb3", "torchrl"):
        wanted += [Requirement(text) for text in asked["project"]["optional-dependencies"][extra]]
    for group in ("dev", "docs"):
        wanted += [Requirement(text) for text in asked["dependency-groups"][group]]
    found = locked()
    for requirement in wanted:
        name = canonicalize_name(requirement.name)
        if name != "torch":
            assert requirement.specifier.contains(found[name][0]), requirement
    assert "torch" not in found
    assert all(hashes > 0 for _, hashes in found.values())


def test_exact_versions_are_in_the_lock_only() -> None:
    """So that the package can be installed beside others."""
    for text in project()["project"]["dependencies"]:
        requirement = Requirement(text)
        kinds = {part.operator for part in requirement.specifier}
        assert kinds, f"{text} has no lower end"
        assert "==" not in kinds, text


def test_every_extra_is_used() -> None:
    """Something in the package names a module of each."""
    source = "\n".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    modules = {"mujoco-warp": "mujoco_warp", "warp-lang": "import warp"}
    for extra, texts in project()["project"]["optional-dependencies"].items():
        for name in (Requirement(text).name for text in texts):
            module = modules.get(name, name.replace("stable-", "stable_"))
            assert re.search(rf"\b{re.escape(module)}\b", source), f"{name} of the extra {extra}"


def test_nothing_says_where_packages_come_from() -> None:
    assert not re.search(r"://|^-", (ROOT / "requirements.lock").read_text(), flags=re.MULTILINE)


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
def test_make_installs_the_torch_of_the_project() -> None:
    """Where the environment is not ready yet: .venv of an empty folder."""
    done = subprocess.run(
        ["make", "-n", "VENV=/nowhere/.venv", "lint"], cwd=ROOT, capture_output=True, text=True
    )
    lock = (ROOT / "requirements.lock").read_text()
    (torch,) = re.findall(r"^# (torch==\S+) ", lock, flags=re.MULTILINE)
    asked = project()["project"]["dependencies"]
    (wanted,) = (Requirement(text) for text in asked if text.startswith("torch"))
    assert wanted.specifier.contains(torch.partition("==")[2])
    lines = done.stdout.splitlines()
    installs = [line.split("install ", 1)[1] for line in lines if "pip install" in line]
    assert installs[:2] == [
        "--quiet --no-deps --require-hashes --requirement requirements.lock",
        f"--quiet {torch}",
    ]


def test_hooks_run_what_make_checks() -> None:
    hooks = set(
        re.findall(r"entry: \.venv/bin/(\S+)", (ROOT / ".pre-commit-config.yaml").read_text())
    )
    done = subprocess.run(
        ["make", "-n", "lint", "types"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    tools = set(re.findall(r"^\S*/bin/(ruff|mypy|codespell)", done.stdout, flags=re.MULTILINE))
    assert hooks == tools


def test_the_citation_is_of_this_version_and_of_the_papers_authors() -> None:
    citation = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {kstep.__version__}\n" in citation
    names = re.findall(r"family-names: (\w+)", citation)
    readme = (ROOT / "README.md").read_text()
    (cited,) = re.findall(r"cite its paper: (.*?)\.$", readme, flags=re.MULTILINE | re.DOTALL)
    assert names == re.findall(r"[A-Z]\. (?:V\. )?(\w{3,})", cited)
    (title,) = re.findall(r"  - type: article\n    title: \"(.*)\"", citation)
    assert title in " ".join(cited.split())
    assert re.findall(r"arXiv:\S+\d", cited) == re.findall(r'value: "(arXiv:\S+)"', citation)
