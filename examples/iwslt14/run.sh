#!/usr/bin/env bash
# Run one experiment on the machine at hand: examples/iwslt14/run.sh A10 --data data/iwslt14/bin; --list, --help, --dry-run.
# PYTHON names the interpreter that has fairseq.
set -euo pipefail
exec "${PYTHON:-python}" "$(dirname "$0")/../../scripts/recipe.py" "$@"
