# Sourced, after common.sh: packages of Debian and Ubuntu. WEBNN_NO_APT=1 keeps all from installing.
APT="-o Acquire::http::Timeout=30 -o Acquire::Retries=1"

as_root() { if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo -n "$@"; fi; }

may_install() {
  [ -z "${WEBNN_NO_APT:-}" ] && [ -e /etc/debian_version ] && command -v apt-get >/dev/null &&
    as_root true 2>/dev/null
}

# shellcheck disable=SC2086  # options
install_packages() {
  as_root apt-get $APT update &&
    as_root env DEBIAN_FRONTEND=noninteractive apt-get $APT install -y --no-install-recommends "$@"
}
