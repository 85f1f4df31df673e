#!/usr/bin/env bash
# Makes an environment of its own and runs every test; arguments go to pytest.
#
#   scripts/test.sh [pytest arguments]
#
# KLANG_VENV names the environment's folder (.venv-test), PYTHON the interpreter (python3, 3.8-3.12).
# KLANG_MULTI30K, a folder with Multi30k's files, adds the trial on real text to the one on generated text.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/environment.sh
make_environment "${KLANG_VENV:-.venv-test}" fairseq,test
exec "$PY" -m pytest "$@"
