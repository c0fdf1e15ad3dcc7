# shellcheck shell=bash disable=SC2034
# Shared by test.sh and demo.sh: what the build needs, and which build this machine can do. Sourced by bash, not run.

# One line per Debian package: package, and a command or header that shows it is there, however it was installed.
build_needs="
cmake            cmake
ninja-build      ninja
g++              g++
pkg-config       pkg-config
libcli11-dev     CLI/CLI.hpp
nlohmann-json3-dev nlohmann/json.hpp
libfmt-dev       fmt/format.h
libzip-dev       zip.h
libxsimd-dev     xsimd/xsimd.hpp
"
test_needs="
libgtest-dev     gtest/gtest.h
libboost-context-dev boost/context/fiber.hpp
python3          python3
"

# Prints the packages of the list on stdin whose command or header is missing.
missing_packages() {
  local package probe
  while read -r package probe; do
    case $probe in
      "") continue ;;
      *.h | *.hpp)
        echo "#include <$probe>" | "${CXX:-g++}" -std=c++20 -E -x c++ - >/dev/null 2>&1 || echo "$package" ;;
      *) command -v "$probe" >/dev/null || echo "$package" ;;
    esac
  done
}

# ensure_packages LIST: installs what is missing if that is possible, and says what is missing if not.
ensure_packages() {
  local missing
  missing=$(missing_packages <<<"$1" | tr '\n' ' ')
  [ -z "$missing" ] && return
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "installing: $missing"
    # shellcheck disable=SC2086
    if apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends $missing; then
      missing=$(missing_packages <<<"$1" | tr '\n' ' ')
      [ -z "$missing" ] && return
    fi
  fi
  {
    echo "error: missing: $missing"
    echo "These are Debian's and Ubuntu's package names: apt-get install $missing"
  } >&2
  exit 1
}

# Succeeds if there is an nvcc, and tells CMake where.
find_nvcc() {
  local nvcc
  nvcc=${CUDACXX:-$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)}
  command -v "$nvcc" >/dev/null && export CUDACXX=$nvcc
}

# Prints the name of the first GPU of compute capability 9.0; fails if there is none.
find_hopper() {
  local gpus
  command -v nvidia-smi >/dev/null || return 1
  gpus=$(nvidia-smi --query-gpu=compute_cap,name --format=csv,noheader 2>/dev/null) || return 1
  gpus=$(sed -n 's/^9\.0, //p' <<<"$gpus")
  [ -n "$gpus" ] && echo "${gpus%%$'\n'*}"
}

# pip_install DIRECTORY PACKAGE..: into the virtual environment DIRECTORY, which it makes where there is none.
pip_install() {
  if ! python3 -c 'import ensurepip' 2>/dev/null && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends python3-venv
  fi
  python3 -m venv "$1" && "$1/bin/pip" install -q "${@:2}"
}

# ensure_matplotlib DIRECTORY: for the tests of bench/plot*.py, in the virtual environment DIRECTORY where python3 has none.
# Without it (no network, say) they are skipped.
ensure_matplotlib() {
  local python
  for python in python3 "$1/bin/python3"; do
    "$python" -c 'import matplotlib' 2>/dev/null && return
  done
  echo "installing Matplotlib into $1 for the tests of bench/plot*.py"
  pip_install "$1" 'matplotlib>=3.6' || echo "that failed: these tests will be skipped"
}

# ensure_disassembler DIRECTORY: cuobjdump (and nvdisasm, which it calls) for the checks of the SASS, in the virtual
# environment DIRECTORY where nothing else has them. Without them (no network, say) these tests are skipped.
ensure_disassembler() {
  local bin
  command -v cuobjdump >/dev/null && command -v nvdisasm >/dev/null && return
  for bin in "$(dirname "$CUDACXX")" "$1"/lib/python3*/site-packages/nvidia/cu13/bin; do
    [ -x "$bin/cuobjdump" ] && [ -x "$bin/nvdisasm" ] && return
  done
  echo "installing cuobjdump and nvdisasm into $1 for the checks of the SASS"
  pip_install "$1" nvidia-cuda-cuobjdump==13.2.78 nvidia-cuda-nvdisasm==13.2.78 ||
    echo "that failed: these tests will be skipped"
}
