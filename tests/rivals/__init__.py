"""Tests of the rivals package."""
