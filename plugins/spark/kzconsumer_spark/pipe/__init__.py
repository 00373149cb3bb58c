"""What daemon and worker say to each other. Read `messages`."""
