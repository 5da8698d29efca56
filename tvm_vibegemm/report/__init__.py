"""Pages made from measurements."""
