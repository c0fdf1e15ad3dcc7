#!/usr/bin/env bash
# Attention of one layer of a real transformer (data/) with fa3, compared with what the transformer itself computed: on a
# Hopper GPU if there is one (and nvcc to build the kernels), else on the CPU. Installs what the build needs when run as root.
set -euo pipefail
cd "$(dirname "$0")"
. tools/setup.sh

preset=cpu device=cpu
if gpu=$(find_hopper); then
  if find_nvcc; then
    echo "GPU: $gpu"
    preset=gpu device=cuda
  else
    echo "GPU: $gpu, but there is no nvcc to build its kernels with: running on the CPU"
  fi
else
  echo "no Hopper GPU here: running on the CPU"
fi

ensure_packages "$build_needs"
# A build tree that test.sh made keeps its tests.
tests=
[ -f build/$preset/CMakeCache.txt ] || tests=-DFA3_TESTS=OFF
cmake --preset $preset $tests
cmake --build --preset $preset --target fa3_command --parallel "$(nproc)"

echo
build/$preset/cli/fa3 run data/minilm_layer.npz --device $device \
  --out build/$preset/minilm_o.npy --lse build/$preset/minilm_lse.npy --expected data/minilm_expected.npy
