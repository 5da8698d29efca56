"""Models and shape suites for measuring."""
