"""From raw parallel text to a folder that fairseq-train reads."""
