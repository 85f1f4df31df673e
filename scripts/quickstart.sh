#!/usr/bin/env bash
# Trains a small German-English model twice, with cross-entropy and with soft BLEU, and compares
# them; downloads no data.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
  cat <<'TEXT'
usage: scripts/quickstart.sh [options]

Writes a corpus from a grammar, prepares it, trains cross-entropy and restricted_softbleu with the
same settings, translates the test set with both, prints the scores and draws the curves. Under 10
minutes on 2 CPU cores once its environment is installed. A second run does only what is missing; a
killed training resumes.

  --out DIR     folder for everything (default: quickstart)
  --epochs N    epochs of each training (default: 8)
  --seed N      seed of the corpus and of the trainings (default: 1)
  --smoke       a trial of a minute: 400 pairs, 1 epoch, a tiny model; the scores mean nothing
  --active-env  use the Python environment that is active and install nothing
  --help

KLANG_VENV names the environment's folder (.venv-quickstart), PYTHON the interpreter (python3,
3.8-3.12).
TEXT
}

fail() {
  echo "quickstart: error: $*" >&2
  exit 2
}

OUT=quickstart EPOCHS= SEED=1 SMOKE= ACTIVE=
while [ $# -gt 0 ]; do
  case $1 in
    --out | --epochs | --seed)
      [ $# -ge 2 ] || fail "$1 needs a value; see --help"
      case $1 in --out) OUT=$2 ;; --epochs) EPOCHS=$2 ;; --seed) SEED=$2 ;; esac
      shift 2
      ;;
    --smoke) SMOKE=1; shift ;;
    --active-env) ACTIVE=1; shift ;;
    --help | -h) usage; exit 0 ;;
    *) fail "unknown option $1; see --help" ;;
  esac
done

if [ -n "$SMOKE" ]; then
  SIZES=(--train 400 --valid 23 --test 21) MERGES=200 DIM=16 FFN=32 LAYERS=1 HEADS=2
  WARMUP=4 INTERVAL=1
  EPOCHS=${EPOCHS:-1}
else
  SIZES=(--train 6000 --valid 507 --test 503) MERGES=2000 DIM=128 FFN=256 LAYERS=2 HEADS=4
  WARMUP=100 INTERVAL=20
  EPOCHS=${EPOCHS:-8}
fi
[[ $EPOCHS =~ ^[1-9][0-9]*$ ]] ||
  fail "--epochs is $EPOCHS; it must be a whole number of at least 1"
[[ $SEED =~ ^[0-9]+$ ]] || fail "--seed is $SEED; it must be a whole number"

if [ -n "$ACTIVE" ]; then
  PY=$(command -v python) || fail "no python in the active environment"
  command -v fairseq-train >/dev/null && command -v klang >/dev/null ||
    fail "the active environment has no fairseq-train or no klang; pip install -e '.[fairseq]'," \
      "or leave --active-env out"
else
  . scripts/environment.sh
  make_environment "${KLANG_VENV:-.venv-quickstart}" fairseq
  export PATH="$(cd "$(dirname "$PY")" && pwd):$PATH"
fi
export PYTHONWARNINGS=ignore
# So small a model gains little from more threads, and loses much on a busy machine.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}

# Everything in one folder belongs to one choice of options.
mkdir -p "$OUT" || fail "folder $OUT cannot be made; choose another one with --out"
SETTINGS="epochs=$EPOCHS seed=$SEED smoke=${SMOKE:-0}"
if [ -e "$OUT/settings" ] && [ "$(cat "$OUT/settings")" != "$SETTINGS" ]; then
  fail "$OUT was made with $(cat "$OUT/settings"), not $SETTINGS; choose another folder with" \
    "--out, or remove it"
fi
echo "$SETTINGS" >"$OUT/settings.tmp" && mv "$OUT/settings.tmp" "$OUT/settings"

DEVICE=--cpu
"$PY" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' && DEVICE=
# Without this flag of fairseq's main branch a resumed training sees other batches than an
# uninterrupted one.
RESUME=
"$PY" -c 'import sys
from fairseq.dataclass.configs import DatasetConfig
sys.exit("update_epoch_batch_itr" not in DatasetConfig.__dataclass_fields__)' 2>/dev/null &&
  RESUME="--update-epoch-batch-itr True"
BEGIN=$SECONDS

echo "== 1/5 The corpus: $OUT/text"
if [ ! -e "$OUT/text/done" ]; then
  "$PY" examples/quickstart/grammar.py --out "$OUT/text" --seed "$SEED" "${SIZES[@]}"
  touch "$OUT/text/done"
fi

echo "== 2/5 Preparing it: $OUT/data"
klang prepare text --train "$OUT/text/train" --valid "$OUT/text/valid" --test "$OUT/text/test" \
  --out "$OUT/data" -s de -t en --subword bpe --vocab-size "$MERGES" --keep-case

train() { # name, criterion and its flags
  local name=$1 run=$OUT/$1
  shift
  [ -e "$run/done" ] && return 0
  mkdir -p "$run"
  fairseq-train "$OUT/data/bin" --user-dir fairseq_klang --save-dir "$run" \
    --task translation -s de -t en --arch transformer_dualhead --dropout 0.1 \
    --encoder-embed-dim "$DIM" --encoder-ffn-embed-dim "$FFN" \
    --encoder-layers "$LAYERS" --encoder-attention-heads "$HEADS" \
    --decoder-embed-dim "$DIM" --decoder-ffn-embed-dim "$FFN" \
    --decoder-layers "$LAYERS" --decoder-attention-heads "$HEADS" \
    "$@" --label-smoothing 0.1 \
    --optimizer adam --adam-betas '(0.9, 0.98)' --clip-norm 1.0 \
    --lr 0.003 --lr-scheduler inverse_sqrt --warmup-updates "$WARMUP" \
    --max-tokens 4096 --required-batch-size-multiple 1 $RESUME \
    --max-epoch "$EPOCHS" --seed "$SEED" $DEVICE \
    --eval-bleu --eval-bleu-args '{"beam": 1, "max_len_a": 1.2, "max_len_b": 10}' \
    --eval-bleu-detok moses --eval-bleu-remove-bpe \
    --best-checkpoint-metric bleu --maximize-best-checkpoint-metric --no-epoch-checkpoints \
    --log-format json --log-interval "$INTERVAL" --log-file "$run/train.log" 2>&1 |
    tee -a "$run/console.log" | sed -n "s/.* | valid | {\"epoch\": \([0-9]*\),.*\
\"valid_ppl\": \"\([0-9.]*\)\".*\"valid_bleu\": \"\([0-9.]*\)\".*/\
  $name, epoch \1 of $EPOCHS: validation perplexity \2, BLEU \3/p" || {
    tail -n 15 "$run/console.log" >&2
    fail "the training $name stopped; the whole output is in $run/console.log." \
      "Run the same command again to resume"
  }
  touch "$run/done"
}

echo "== 3/5 Training: $OUT/ce (cross-entropy) and $OUT/sb (soft BLEU)"
train ce --criterion label_smoothed_cross_entropy
train sb --criterion restricted_softbleu --sb-alpha 0.8

echo "== 4/5 Translating the test set, some seconds: $OUT/test.ce.out and $OUT/test.sb.out"
for name in ce sb; do
  output=$OUT/test.$name.out
  [ -e "$output" ] && continue
  fairseq-generate "$OUT/data/bin" --user-dir fairseq_klang --task translation -s de -t en \
    --path "$OUT/$name/checkpoint_best.pt" --beam 5 --max-len-a 1.2 --max-len-b 10 \
    --max-tokens 4096 --required-batch-size-multiple 1 $DEVICE \
    >"$output.tmp" 2>"$OUT/$name/generate.log" || {
    tail -n 5 "$OUT/$name/generate.log" >&2
    fail "translating with $OUT/$name/checkpoint_best.pt failed;" \
      "the whole output is in $OUT/$name/generate.log"
  }
  mv "$output.tmp" "$output"
done

echo "== 5/5 Scores and curves"
klang score --ref "$OUT/data/raw/test.en" "$OUT/test.ce.out" "$OUT/test.sb.out" |
  tee "$OUT/scores.txt"
klang report "$OUT/ce" "$OUT/sb" --out "$OUT/report"
TOOK=$((SECONDS - BEGIN))
echo "Done in $((TOOK / 60)) min $((TOOK % 60)) s." \
  "Scores: $OUT/scores.txt   Curves: $OUT/report/curves.png"
[ -z "$SMOKE" ] || echo "This was a trial (--smoke): the scores mean nothing."
