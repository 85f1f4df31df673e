"""What several test modules share; no tests."""
