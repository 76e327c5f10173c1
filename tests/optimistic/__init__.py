"""Optimistic versions: nobody's write is lost, and nobody waits who need not."""
