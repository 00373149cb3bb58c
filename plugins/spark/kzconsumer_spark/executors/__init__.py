"""What Spark's tasks run: ranges are fetched from the brokers where they are written. Read `fetching`."""
