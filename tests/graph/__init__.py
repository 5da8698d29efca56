"""Tests of matching, the pass, and what is built from it."""
