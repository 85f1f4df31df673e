#!/usr/bin/env bash
# Prepares IWSLT14 German-English as this folder's README uses it:
# examples/iwslt14/prepare.sh PRESET [OPTION...]
set -euo pipefail
if [[ ${1-} == -h || ${1-} == --help ]]; then
  echo "usage: $0 bpe8k|bpe32k|bpe10k|sentencepiece|word [option of klang prepare iwslt14 ...]"
  exec klang prepare iwslt14 --help
fi
if [[ $# -eq 0 || $1 == -* ]]; then
  echo "usage: $0 bpe8k|bpe32k|bpe10k|sentencepiece|word [option of klang prepare iwslt14 ...]" >&2
  exit 2
fi
preset=$1
shift
exec klang prepare iwslt14 --preset "$preset" --cache data/iwslt14 --out "data/iwslt14/$preset" "$@"
