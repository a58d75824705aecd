#!/usr/bin/env bash
# Replace the plotting library that pages carry by another release of the npm package
# plotly.js-gl3d-dist-min (lines, markers and 3-D only, so that pages stay small), with its licence.
#   scripts/plotly.sh 4.1.1
set -euo pipefail
cd "$(dirname "$0")/.."
version=${1:?the version, such as 4.1.1}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
(cd "$folder" && npm pack --silent "plotly.js-gl3d-dist-min@$version" && tar xzf ./*.tgz)
cp "$folder"/package/{plotly-gl3d.min.js,LICENSE} src/kstep/report/page/plotly/
echo "write this sum into tests/page/test_html.py:"
sha256sum src/kstep/report/page/plotly/plotly-gl3d.min.js
