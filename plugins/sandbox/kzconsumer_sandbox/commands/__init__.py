"""The verbs `kzconsumer sandbox` and `kzconsumer demo`. Read `sandbox_command`, then `sandbox_actions`."""
