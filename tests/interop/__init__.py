"""Locks of other libraries on the same key, as their authors publish them: they exclude us, and we them."""
