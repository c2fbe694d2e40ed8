# Sourced by the other scripts: the environment they share. Runs in bash 3.2 and later.
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
VENV=$ROOT/.venv
cd "$ROOT"

say() { printf '%s\n' "$*"; }
die() {
  printf '%s\n' "$*" >&2
  exit 1
}

# Mesa and EGL complain on stderr where this is unset; the directory must be private.
if [ ! -d "${XDG_RUNTIME_DIR:-}" ]; then
  XDG_RUNTIME_DIR=$(mktemp -d)
  export XDG_RUNTIME_DIR
  trap 'rm -rf "$XDG_RUNTIME_DIR"' EXIT
fi

# Run a long command quietly: one line while it runs, its log only if it fails.
quietly() {
  local title=$1 log=$2 start=$SECONDS status=0
  shift 2
  if [ ! -t 1 ]; then say "$title ..."; fi
  "$@" >"$log" 2>&1 </dev/null &
  local pid=$!
  while kill -0 "$pid" 2>/dev/null; do
    if [ -t 1 ]; then
      printf '\r\033[K%s ... %d s  %.60s' "$title" $((SECONDS - start)) \
        "$(grep -Eo '^ *(Collecting|Downloading|Installing|Get:[0-9]+|Unpacking).*' "$log" | tail -n 1)"
    elif [ $(((SECONDS - start) % 30)) -eq 29 ]; then
      say "  ... $((SECONDS - start)) s"
    fi
    sleep 1
  done
  wait "$pid" || status=$?
  if [ -t 1 ]; then printf '\r\033[K'; fi
  say "$title: $([ "$status" -eq 0 ] && echo done || echo FAILED), $((SECONDS - start)) s"
  return "$status"
}

fits() { "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; }

# The interpreter to build .venv with: $PYTHON, python3 if its version fits, or a versioned one.
find_python() {
  local candidate without_venv=''
  for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11}; do
    fits "$candidate" || continue
    if "$candidate" -c 'import venv, ensurepip' 2>/dev/null; then
      command -v "$candidate"
      return
    fi
    without_venv=${without_venv:-$candidate}
  done
  if [ -n "$without_venv" ]; then
    local version
    version=$("$without_venv" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    die "$without_venv (Python $version) cannot make virtual environments: venv or ensurepip is" \
      "missing. On Debian or Ubuntu: apt-get install python$version-venv"
  fi
  die "No Python 3.11, 3.12 or 3.13 found (looked for ${PYTHON:-python3 python3.13 python3.12" \
    "python3.11}). Install one with its venv module, or name it: make PYTHON=/path/to/python3.12"
}

# Make .venv with the extras named, unless it has them for this very pyproject.toml.
make_venv() {
  local extra=$1 stamp python
  if ! fits "$VENV/bin/python"; then
    python=$(find_python)
    say "Making .venv with $("$python" --version) ($python)"
    rm -rf "$VENV"
    "$python" -m venv "$VENV"
  fi
  stamp="$(cksum <pyproject.toml) $ROOT"
  if [ "$(cat "$VENV/.stamp-$extra" 2>/dev/null)" = "$stamp" ]; then return; fi
  if ! PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 quietly \
    "Installing webnn_py[$extra] into .venv" "$VENV/pip.log" \
    "$VENV/bin/python" -m pip install --progress-bar off --editable ".[$extra]"; then
    tail -n 15 "$VENV/pip.log" >&2
    die "pip failed; the whole log is in .venv/pip.log"
  fi
  printf '%s' "$stamp" >"$VENV/.stamp-$extra"
  # The test extra contains the samples extra.
  if [ "$extra" = test ]; then printf '%s' "$stamp" >"$VENV/.stamp-samples"; fi
}
