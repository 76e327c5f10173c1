"""Tests of the command line, mostly on real processes."""
