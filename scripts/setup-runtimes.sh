#!/usr/bin/env bash
# Make what runs programs without Python available to the tests: a C++ compiler and a browser.
# Never fails: what cannot be had is said in one line, and its tests are skipped.
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
. "$ROOT/scripts/apt.sh"

LOG=$(mktemp)

# Install a package where a command is missing.
need() {
  local command=$1 package=$2
  if command -v "$command" >/dev/null; then return; fi
  if may_install; then
    quietly "Installing $package (apt-get)" "$LOG" install_packages "$package" ||
      say "No $command: apt-get failed ($(tail -n 1 "$LOG")). Its tests are skipped."
  else
    say "No $command found; its tests are skipped."
  fi
}

need g++ g++
if ! command -v chromium-browser google-chrome >/dev/null; then need chromium chromium; fi
