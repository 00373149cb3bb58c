"""The destination `jdbc`: a table in PostgreSQL."""
