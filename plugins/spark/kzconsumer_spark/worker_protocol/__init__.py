"""What daemon and worker say to each other, and settings that both read. Read `messages`."""
