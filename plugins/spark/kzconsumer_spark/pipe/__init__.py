"""What the daemon and its worker process say to each other, and settings that both know."""
