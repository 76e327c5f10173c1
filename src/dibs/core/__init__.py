"""The algorithms of locking, written once as async code against a store and a runtime."""
