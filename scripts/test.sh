#!/usr/bin/env bash
# Makes an environment of its own and runs every test; arguments go to pytest.
#
#   scripts/test.sh                    everything, in two processes
#   scripts/test.sh -m "not slow"      the developer's loop
#   scripts/test.sh -n 0 tests/losses  one folder in one process
#
# KLANG_VENV names the environment's folder (.venv-test), PYTHON the interpreter (python3,
# 3.8-3.12). KLANG_MULTI30K, a folder with Multi30k's files, adds the trial on real text to the one
# on generated text.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/environment.sh
make_environment "${KLANG_VENV:-.venv-test}" fairseq,test
export OMP_NUM_THREADS=1 # a process a core; more threads would wait for one another
exec "$PY" -m pytest -n 2 --dist worksteal "$@"
