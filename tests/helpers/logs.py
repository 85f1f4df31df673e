"""Logs as fairseq writes them."""

# Lines in the form that fairseq 0.12.3 wrote with --log-format json to a --log-file (no prefix) ...
JSON_LOG = """\
Namespace(no_progress_bar=False, log_format='json', activation={'a': 1})
begin training epoch 1
{"epoch": 1, "update": 0.284, "loss": "9.5", "nll_loss": "9.25", "ppl": "608.9", "wps": "0", "num_updates": "20", "train_wall": "4", "gnorm_ce_head": "0.5"}
{"epoch": 1, "update": 0.582, "loss": "8.5", "nll_loss": "8.25", "ppl": "304.4", "num_updates": "40", "train_wall": "8", "sb_p4": "nan"}
{"epoch": 1, "valid_loss": "7.5", "valid_nll_loss": "7.0", "valid_ppl": "128", "valid_bleu": "3.5", "valid_num_updates": "67"}
end of epoch 1 (average epoch stats below)
{"epoch": 1, "train_loss": "8.8", "train_nll_loss": "8.6", "train_train_wall": "13", "train_num_updates": "67"}
"""  # noqa: E501
# ... and with --log-format simple, to standard output (prefix) and to the file.
SIMPLE_LOG = """\
2026-01-02 03:04:05 | INFO | train_inner | epoch 001:     20 / 67 loss=9.5, nll_loss=9.25, ppl=608.9, num_updates=20, train_wall=4, gnorm_ce_head=0.5
epoch 001:     40 / 67 loss=8.5, nll_loss=8.25, ppl=304.4, num_updates=40, train_wall=8, sb_p4=nan
2026-01-02 03:04:05 | INFO | valid | epoch 001 | valid on 'valid' subset | loss 7.5 | nll_loss 7.0 | ppl 128 | bleu 3.5 | num_updates 67
end of epoch 1 (average epoch stats below)
epoch 001 | loss 8.8 | nll_loss 8.6 | train_wall 13 | num_updates 67
Saved checkpoint checkpoint_best.pt (epoch 1 @ 67 updates, score 3.5)
"""  # noqa: E501


def log(folder, text, name="train.log"):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text, encoding="utf-8")
    return folder / name
