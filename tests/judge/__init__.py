"""Tests of the judge package."""
