#!/usr/bin/env bash
# Prepares Multi30k German-English as this folder's README uses it:
# examples/multi30k/prepare.sh --from DIR
set -euo pipefail
exec klang prepare multi30k --out data/multi30k --subword bpe --vocab-size 8000 "$@"
