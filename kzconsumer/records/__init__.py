"""Fetched bytes become records; the decoder is in C (`native`: docs/internals/decoder.md). Read `forms` first.

`decode` and `compression`: from bytes. `columns`: as Arrow. `checksums`: by which two reads are compared.
"""
