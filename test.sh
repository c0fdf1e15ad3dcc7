#!/usr/bin/env bash
# Builds fa3 and runs every test this machine can run; names what was skipped, and why. Installs what it needs when run
# as root on Debian or Ubuntu. Exit code 0 only if no test failed.
set -euo pipefail
cd "$(dirname "$0")"
. tools/setup.sh

ensure_packages "$build_needs $test_needs"
ensure_matplotlib .venv
if find_nvcc; then
  preset=gpu
  ensure_disassembler .venv
else
  preset=cpu
fi
jobs=$(nproc)
cmake --preset $preset -DFA3_TESTS=ON
cmake --build --preset $preset --parallel "$jobs"

results=build/$preset/test_results.xml
code=0
ctest --preset $preset --parallel "$jobs" --no-tests=error --output-junit "$PWD/$results" || code=$?

echo
if [ $preset = cpu ]; then
  echo "not built: the Hopper kernels, their GPU tests and the checks of the compiled kernels (there is no nvcc)"
fi
python3 -B tests/summary.py "$results" || code=1
exit $code
