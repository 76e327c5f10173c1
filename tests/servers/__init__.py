"""Real servers for tests: each on free loopback ports, with its data in a temporary folder, gone with the test run."""
