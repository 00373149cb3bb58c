"""Requests and responses as bytes, without IO. Read `primitives`, then any API."""
