"""Printing records, as a member of a group or without one.

Read `printing`: the loop, and what ends it (a count, an end, a signal). `record_text`: columns as text, and filters.
`format_and_places`: what `-f` means, and where reading begins and ends.
"""
