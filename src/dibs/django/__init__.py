"""A Django application for ``INSTALLED_APPS = ["dibs.django", …]``: it adds ``manage.py dibs_run``."""
