"""What tests need: the contract suite that every store passes, histories, faults."""
