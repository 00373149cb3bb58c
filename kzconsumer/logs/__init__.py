"""Log lines: made, counted, suppressed as repeats, written. Read `logger` first.

`repeats`: which lines are left out. `setup`: where lines go and how they look, without secrets; how many are errors.
"""
