"""Log lines: made, counted, suppressed as repeats, written. Read `logger` first."""
