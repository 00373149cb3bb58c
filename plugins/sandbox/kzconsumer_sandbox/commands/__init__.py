"""The verbs `sandbox` and `demo`. Read `sandbox_command`."""
