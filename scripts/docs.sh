#!/usr/bin/env bash
# Build the documentation into site/; a broken link is an error.
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

make_venv docs
NO_MKDOCS_2_WARNING=1 "$VENV/bin/mkdocs" build --quiet --strict
say "Documentation: $ROOT/site/index.html"
