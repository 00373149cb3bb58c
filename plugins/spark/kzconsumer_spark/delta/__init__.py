"""The destination `delta`: a table of Delta Lake."""
