"""Ties generator, judge, rivals and database together."""
