"""Fetched bytes become records; the decoder is in C (`native`: docs/internals/decoder.md). Read `forms` first.

`forms`: as what records travel, and messages are taken out. `decode`: from bytes, up to what is corrupt; `compression`:
bodies, within bounded memory. `columns`: as Arrow, and back. `checksums`: by which two reads are compared.
"""
