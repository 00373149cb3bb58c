"""From queue to application: what is handed out and acknowledged. Read `cursor` first."""
