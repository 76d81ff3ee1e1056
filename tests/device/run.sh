#!/usr/bin/env bash
# On a machine with an NVIDIA GPU, with this tree's wheels installed (infeng-cuda built with -Dgpu=enabled): compares every
# kernel and some engines with the CPU byte for byte, runs NVIDIA's checkers, measures, and writes a report. About half an
# hour; `tests/device/run.sh FOLDER` (build/device without one).
set -uo pipefail
cd "$(dirname "$0")/../.."
out=${1:-build/device}
mkdir -p "$out"
pytest=(python3 -P -m pytest -p no:cacheprovider -q)

{
  echo "# Report of $(date --utc +%F)"
  echo
  nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
  infeng doctor 2>/dev/null | sed -n '1,6p'
  for part in kernels engines checkers speed; do
    echo
    echo "## $part"
    echo
    echo '```'
    case $part in
      kernels) "${pytest[@]}" -m device tests/plugins/cuda 2>&1 | tail -n 15 ;;
      engines) INFENG_TEST_DEVICE=0 "${pytest[@]}" tests/plugins/cuda/test_backend.py tests/plugins/cuda/test_families.py 2>&1 | tail -n 15 ;;
      checkers)
        for tool in memcheck racecheck initcheck synccheck; do
          echo "$tool: $(timeout 400 compute-sanitizer --tool "$tool" --report-api-errors no python3 -P tests/device/sample.py 2>&1 |
            grep 'SUMMARY' | tail -n 1)"
        done
        ;;
      speed) python3 -P tests/device/measure.py ;;
    esac
    echo '```'
  done
} | tee "$out/report.md"
