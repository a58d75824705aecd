#!/usr/bin/env bash
# Write requirements.lock: exact versions, with the hashes of their files, of everything that
# pyproject.toml asks for, the extras that tests import (tb, wandb, atari, minatar, onnx, sb3, torchrl) and
# tools for development and documentation included. Versions that are locked already stay; arguments go to
# pip-compile:
# --upgrade, --upgrade-package rich.
#
# Torch takes part in the resolution, but is not in the lock: its build, and what that depends on,
# differ between machines (CPU, CUDA). Its version stands in a comment there, which make reads; it is
# changed by hand.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet pip-tools
"$folder/venv/bin/python" - > "$folder/pyproject.in" <<'PYTHON'
import tomllib

with open("pyproject.toml", "rb") as file:
    asked = tomllib.load(file)
project = asked["project"]
extras = project["optional-dependencies"]
print(
    *asked["build-system"]["requires"],
    *project["dependencies"],
    *(text for name in ("tb", "wandb", "atari", "minatar", "onnx", "sb3", "torchrl") for text in extras[name]),
    *asked["dependency-groups"]["dev"],
    *asked["dependency-groups"]["docs"],
    sep="\n",
)
PYTHON
torch=$(sed -nE 's/^# (torch==[^ ]+) .*/\1/p' requirements.lock)
echo "$torch" >> "$folder/pyproject.in"
cp requirements.lock "$folder/requirements.lock"
# Where packages are fetched from is the machine's affair (pip's own configuration), so no address is
# written. "Unsafe" is pip-tools' word for what it leaves out.
(
    cd "$folder"
    venv/bin/pip-compile --quiet --generate-hashes --strip-extras --unsafe-package torch \
        --no-emit-options --no-header "$@" --output-file requirements.lock pyproject.in
)
# labmaze has no wheel for Python 3.13. dm_control asks for it, but the suite does not import it.
{
    echo "# Exact versions and hashes of everything but torch, written by scripts/lock.sh."
    echo "# $torch is installed after this, without a hash: its build differs between machines."
    sed -E -e '/^$/,$d' -e 's/-r pyproject\.in/pyproject.toml/' \
        -e 's/^labmaze==[^ ]+/& ; python_version < "3.13"/' "$folder/requirements.lock"
} > requirements.lock
