"""The destination `function`: a function of the application."""
