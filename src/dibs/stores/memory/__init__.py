"""A lock server inside this process: `store` has the steps as a client asks for them, `port` is the server."""
