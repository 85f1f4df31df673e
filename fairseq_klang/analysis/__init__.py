"""Numbers in, numbers out: scoring, statistics and curves; imports no fairseq."""
