#!/usr/bin/env bash
# Run the benchmark that the arguments name; without arguments, list all.
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

make_venv bench
"$VENV/bin/python" -m benchmarks "${@:---help}"
