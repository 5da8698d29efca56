"""A generated kernel as data: source checks, launch plan, build, launch."""
