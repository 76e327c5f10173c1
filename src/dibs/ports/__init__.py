"""The only code that talks to drivers; small blocking and async twins."""
