"""Real servers on loopback."""
