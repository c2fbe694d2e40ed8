# Sourced: where Vulkan drivers lie.

# The manifests of all installed drivers, one a line.
vulkan_drivers() {
  local folder
  if [ -n "${VK_DRIVER_FILES:-${VK_ICD_FILENAMES:-}}" ]; then
    tr ':' '\n' <<<"${VK_DRIVER_FILES:-$VK_ICD_FILENAMES}"
    return
  fi
  for folder in /etc /usr/share /usr/local/etc /usr/local/share "${XDG_DATA_HOME:-$HOME/.local/share}"; do
    find "$folder/vulkan/icd.d" -name '*.json' 2>/dev/null || true
  done
}

has_vulkan() {
  local libraries
  # Not a pipe into grep -q: that ends early, and with pipefail the writer's fate would count.
  libraries=$(ldconfig -p 2>/dev/null || /sbin/ldconfig -p 2>/dev/null || true)
  [ -n "$(vulkan_drivers)" ] && [[ $libraries == *libvulkan.so.1* ]]
}
