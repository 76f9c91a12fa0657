#!/usr/bin/env bash
# Installs the Debian packages that are missing, asking nothing: tools/install_deps.sh GROUP...
# Groups: build (the program), mpi (ranks as processes; optional), test (the tests), oracles (the Python ones),
# ci (formatting, fuzzing, benches).
set -euo pipefail

build="g++ cmake ninja-build pkg-config ccache libboost1.81-dev nlohmann-json3-dev libcli11-dev libspdlog-dev
  libfmt-dev libhwy-dev"
mpi="libopenmpi-dev openmpi-bin"
test="libgtest-dev libgmock-dev librapidcheck-dev"
oracles="python3 python3-venv ca-certificates"
ci="git clang clang-format libclang-rt-14-dev libbenchmark-dev"

wanted=()
for group in "${@:-build}"; do
  case "$group" in
    build) wanted+=($build) ;;
    mpi) wanted+=($mpi) ;;
    test) wanted+=($test) ;;
    oracles) wanted+=($oracles) ;;
    ci) wanted+=($ci) ;;
    *) echo "install_deps.sh: unknown group '$group'; accepted: build mpi test oracles ci" >&2; exit 2 ;;
  esac
done

missing=()
for package in "${wanted[@]}"; do
  state=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null || true)
  [ "$state" = installed ] || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo >/dev/null; then
    echo "install_deps.sh: not root and no sudo; install these packages first: ${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
fi
echo "installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
"${as_root[@]}" apt-get update -qq
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
