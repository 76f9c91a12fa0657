#!/usr/bin/env bash
# What needs a GPU: the kernels and the forward pass of the CUDA backend, the memory plan held to the byte, then the
# kernels under compute-sanitizer.
# Usage: tools/gpu_suite.sh [BUILD_FOLDER]; the folder is a build of the preset cuda-release.
set -uo pipefail
build=${1:-build/cuda-release}
suites=("$build/tests/kernels_cuda_test" "$build/tests/model_kimi_linear_forward_cuda_test")
failed=0

run() {
  echo "== $*"
  "$@" || { echo "== failed: $*"; failed=1; }
}

for suite in "${suites[@]}"; do run "$suite" --gtest_brief=1; done
run "$build/tests/engine_memory_plan_test" --gtest_brief=1 --gtest_filter='Cuda/*'
for tool in memcheck initcheck; do
  run compute-sanitizer --tool "$tool" --error-exitcode 9 "${suites[0]}" --gtest_brief=1
done
# cuBLASLt's own kernels wait on barriers that racecheck does not follow: they are left out.
run compute-sanitizer --tool racecheck --error-exitcode 9 --kernel-name-exclude kernel_substring=nvjet \
  "${suites[0]}" --gtest_brief=1
exit $failed
