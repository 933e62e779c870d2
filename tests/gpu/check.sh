#!/usr/bin/env bash
# What has to hold on a node's first GPU before Kvartal may own memory of it: PASS or FAIL a step, then figures as JSON.
# usage: tests/gpu/check.sh [--fake] [--build FOLDER] [--json FILE]
#   --fake   on a simulated GPU: finds mistakes of this script, and says nothing about a GPU
#   --build  where the programs are [build]
# Takes a minute or two; each step ends after its own limit. Builds nothing: `make build` first. It leaves clocks, MIG
# and MPS alone. Ends with 1 when a step failed, with 2 when it could not begin.
set -uo pipefail
cd "$(dirname "$0")/../.."

fake=false build=build json=
while [ $# -gt 0 ]; do
  case "$1" in
    --fake) fake=true ;;
    --build) build=${2:?check.sh: --build needs a folder}; shift ;;
    --json) json=${2:?check.sh: --json needs a file}; shift ;;
    -h | --help) sed -n '2,8s/^# //p' "$0"; exit 0 ;;
    *) echo "check.sh: unknown argument '$1'" >&2; exit 2 ;;
  esac
  shift
done
for program in gpu_test gpu_probe mover_test; do
  [ -x "$build/tests/$program" ] || { echo "check.sh: $build/tests/$program is not there: make build" >&2; exit 2; }
done

work=$(mktemp -d /dev/shm/kvartal-check-XXXXXX)
trap 'rm -rf "$work"' EXIT
library=libcuda.so.1
if $fake; then
  library=$(realpath "$build")/lib/simulated-gpu/libcuda.so.1
  export KVARTAL_FAKE_CUDA="dir=$work;gpus=1;memory_mib=1024;context_mib=16"
  echo "check.sh: SIMULATED: no figure below says anything about a GPU"
else
  export KVARTAL_GPU_LIBRARY=$library
fi

failed=0 steps=
# step NAME SECONDS COMMAND...
step() {
  local name=$1 limit=$2 began=$SECONDS verdict=PASS
  shift 2
  timeout --kill-after=5 "$limit" "$@" >"$work/out" 2>&1 || verdict="FAIL ($?)"
  [ "$verdict" = PASS ] || { failed=1; tail -n 20 "$work/out"; }
  echo "$verdict $name ($((SECONDS - began)) s)"
  steps+="${steps:+, }\"$name\": \"$verdict\""
}

uname -sr
$fake || nvidia-smi -L || true
step "the probe finds a GPU" 120 "$build/tests/gpu_probe" "$library"
figures=$(grep '^{' "$work/out" || echo null)
# cases PROGRAM FILTER. One process a case, as ctest does it: a context that is lost must not fail the next.
cases() {
  local name names
  names=$("$build/tests/$1" --gtest_filter="$2" --gtest_list_tests | awk '/^[^ ]/ {suite = $1} /^ / {print suite $1}')
  for name in $names; do
    step "$name" 60 "$build/tests/$1" --gtest_filter="$name"
  done
}
cases gpu_test 'GpuDriverContractTest.*'
cases mover_test 'Kinds/MoverContract.*/Process'
result="{\"steps\": {$steps}, \"figures\": $figures}"
[ -z "$json" ] || echo "$result" >"$json"
echo "$figures"
exit $failed
