"""What a member reports of itself over HTTP. Read `observer`, then `report`."""
