#!/usr/bin/env bash
# Make a Vulkan driver available where there is none: Mesa's lavapipe, a complete adapter in
# software. With --swiftshader DIR, also unpack (not install) SwiftShader, a second one, for tests.
# Never fails: what cannot be had is said in one line, and GPU parts are left out.
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
. "$ROOT/scripts/vulkan.sh"
. "$ROOT/scripts/apt.sh"

LOG=$(mktemp)

# shellcheck disable=SC2086  # options
download() { apt-get $APT download "$1" || { as_root apt-get $APT update && apt-get $APT download "$1"; }; }

download_swiftshader() {
  local target=$1 work status=0
  work=$(mktemp -d)
  # Called where errors do not end the script, hence the chain.
  cd "$work" && download chromium-common && mkdir files &&
    dpkg-deb --fsys-tarfile chromium-common_*.deb | tar -x -C files --strip-components=4 \
      ./usr/lib/chromium/libvk_swiftshader.so ./usr/lib/chromium/vk_swiftshader_icd.json &&
    mkdir -p "$target" && mv files/* "$target" || status=$?
  rm -rf "$work"
  return $status
}

if [ "$(uname)" != Linux ]; then exit 0; fi # Metal and Direct3D need nothing

if ! has_vulkan; then
  if may_install; then
    quietly "Installing Mesa's Vulkan drivers (apt-get)" "$LOG" \
      install_packages libvulkan1 mesa-vulkan-drivers ||
      say "No Vulkan driver: apt-get failed ($(tail -n 1 "$LOG")). GPU parts are left out."
  else
    say "No Vulkan driver found; GPU parts are left out. Install your GPU's driver, or the software" \
      "one: apt-get install mesa-vulkan-drivers (Debian, Ubuntu), vulkan-swrast (Arch)," \
      "mesa-vulkan-drivers (Fedora)."
  fi
fi

if [ "${1:-}" = --swiftshader ] && [ ! -e "$2/vk_swiftshader_icd.json" ]; then
  if [ -n "${WEBNN_NO_APT:-}" ] || ! command -v apt-get >/dev/null ||
    ! command -v dpkg-deb >/dev/null; then
    say "SwiftShader, the second software adapter, is left out: it is taken from a Debian package."
  else
    quietly "Unpacking SwiftShader (Debian's chromium-common)" "$LOG" download_swiftshader "$2" ||
      say "SwiftShader, the second software adapter, is left out: $(tail -n 1 "$LOG")"
  fi
fi
rm -f "$LOG"
