"""Log lines. Read `logger` first: how the code logs an event, and the facts that all lines of a member have.

`setup`: the chain that each line passes: secrets hidden, repeats dropped, errors counted, written to the terminal, as
JSON or to the journal. `repeats`: the rule only, which lines are the same.
"""
