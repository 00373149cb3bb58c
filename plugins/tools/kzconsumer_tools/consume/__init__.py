"""Printing records, as a member of a group or without one. Read `printing`.

`record_text`: columns as text, and filters. `format_and_places`: what `-f` means, and where reading begins and ends.
"""
