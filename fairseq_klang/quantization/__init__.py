"""INT8: training with it (`qat`), and serving it (`export`, `translate`)."""
