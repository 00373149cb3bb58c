"""Brokers and topics. Read `description`."""
