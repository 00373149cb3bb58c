"""Fetched bytes become records; the decoder is in C (`native/`). Read `forms` first."""
