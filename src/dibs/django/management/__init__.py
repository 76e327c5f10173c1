"""The commands of the application."""
