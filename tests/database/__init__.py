"""Tests of the tuning database."""
