#!/usr/bin/env bash
# The study of docs/results/multi30k.md: cross-entropy against restricted_softbleu on Multi30k, same small transformer, same seeds.
#
#   scripts/study_multi30k.sh --data DIR --out RUNS [--seeds "1 2"] [--epochs 14] [--threads 1] [--python PYTHON]
#
# DIR is what klang prepare multi30k wrote. The two criterions of a seed run beside each other, one process each.
# Started again, it goes on where it stopped: a finished stage leaves a marker, and fairseq resumes a training from its
# last checkpoint, bit for bit. Scores are in RUNS/scores.*.txt, curves in RUNS/report.
set -euo pipefail

DATA="" OUT="" SEEDS="1 2" EPOCHS=14 THREADS=1 PYTHON=python
while [ $# -gt 0 ]; do
  case "$1" in
    --data) DATA=$2 ;;
    --out) OUT=$2 ;;
    --seeds) SEEDS=$2 ;;
    --epochs) EPOCHS=$2 ;;
    --threads) THREADS=$2 ;;
    --python) PYTHON=$2 ;;
    -h | --help) sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "study_multi30k: error: unknown option $1; see --help" >&2; exit 2 ;;
  esac
  shift 2
done
[ -n "$DATA" ] && [ -n "$OUT" ] || { echo "study_multi30k: error: --data and --out are needed; see --help" >&2; exit 2; }
[ -f "$DATA/bin/dict.en.txt" ] || { echo "study_multi30k: error: $DATA holds no bin/dict.en.txt; make it with klang prepare multi30k" >&2; exit 2; }
USER_DIR=$(cd "$(dirname "$0")/../fairseq_klang" && pwd)
export OMP_NUM_THREADS=$THREADS

run_one() { # NAME SEED CRITERION-FLAGS...
  local run=$OUT/$1-seed$2 seed=$2
  shift 2
  mkdir -p "$run"
  if [ ! -e "$run/trained" ]; then
    "$PYTHON" -m fairseq_cli.train "$DATA/bin" --user-dir "$USER_DIR" --save-dir "$run" -s de -t en \
      --arch transformer_dualhead --encoder-layers 4 --decoder-layers 4 \
      --encoder-embed-dim 128 --decoder-embed-dim 128 --encoder-ffn-embed-dim 256 --decoder-ffn-embed-dim 256 \
      --encoder-attention-heads 4 --decoder-attention-heads 4 --dropout 0.3 \
      "$@" --label-smoothing 0.1 \
      --optimizer adam --adam-betas '(0.9, 0.98)' --lr 0.004 --lr-scheduler inverse_sqrt --warmup-updates 1000 \
      --max-tokens 4096 --required-batch-size-multiple 1 --update-epoch-batch-itr True --max-epoch "$EPOCHS" --seed "$seed" \
      --eval-bleu --eval-bleu-args '{"beam": 1}' --eval-bleu-detok moses --eval-bleu-remove-bpe \
      --best-checkpoint-metric bleu --maximize-best-checkpoint-metric --keep-last-epochs 5 --cpu \
      --log-format json --log-interval 20 --log-file "$run/train.log" >>"$run/train.out" 2>&1
    touch "$run/trained"
  fi
  for subset in test test1; do
    for beam in 1 5; do
      local output=$run/$subset.beam$beam.out
      [ -e "$output" ] && continue
      "$PYTHON" -m fairseq_cli.generate "$DATA/bin" --user-dir "$USER_DIR" -s de -t en --path "$run/checkpoint_best.pt" --cpu \
        --gen-subset "$subset" --beam "$beam" --required-batch-size-multiple 1 --max-tokens 4096 >"$output.part" 2>>"$run/generate.log"
      mv "$output.part" "$output"
    done
  done
  echo "$(date '+%F %T') $run is finished"
}

for seed in $SEEDS; do
  run_one ce "$seed" --criterion label_smoothed_cross_entropy &
  ce=$!
  run_one softbleu "$seed" --criterion restricted_softbleu --sb-alpha 0.8 &
  softbleu=$!
  wait "$ce"
  wait "$softbleu"
  for subset in test test1; do
    for beam in 1 5; do
      "$PYTHON" -m fairseq_klang.cli score --ref "$DATA/raw/$subset.en" "$OUT/ce-seed$seed/$subset.beam$beam.out" \
        "$OUT/softbleu-seed$seed/$subset.beam$beam.out" >"$OUT/scores.seed$seed.$subset.beam$beam.txt"
    done
  done
done
"$PYTHON" -m fairseq_klang.cli report "$OUT"/ce-seed* "$OUT"/softbleu-seed* --out "$OUT/report"
