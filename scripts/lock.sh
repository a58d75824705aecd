#!/usr/bin/env bash
# Resolve pyproject.toml in an empty environment and write the exact versions to requirements.lock.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
pip="$folder/venv/bin/python -m pip"
echo "torch==2.13.0" > "$folder/constraints"
$pip install --quiet torch==2.13.0
$pip install --quiet --constraint "$folder/constraints" setuptools wheel .[tb] \
    ruff mypy pytest pytest-xdist pytest-timeout hypothesis
$pip check
{
    echo "# Exact versions, written by scripts/lock.sh. Install torch first, then this with --no-deps."
    # A local build tag such as +cpu belongs to the machine, not to the lock.
    $pip freeze --exclude kstep --exclude pip --all | sed -E 's/^(torch==[0-9.]+)\+.*/\1/; s/ @ .*//'
} > requirements.lock
