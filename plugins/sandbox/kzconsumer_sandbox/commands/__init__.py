"""The verbs `kzconsumer sandbox` and `kzconsumer demo`. Read `sandbox_command` (options), then `sandbox_actions` (what
each action does).
"""
