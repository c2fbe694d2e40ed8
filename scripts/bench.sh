#!/usr/bin/env bash
# Run the benchmarks; arguments are theirs.
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

make_venv bench
"$VENV/bin/python" -m benchmarks "$@"
