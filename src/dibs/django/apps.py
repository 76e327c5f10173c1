"""What Django is told of the application."""

from __future__ import annotations

from django.apps import AppConfig


class DibsConfig(AppConfig):  # type: ignore[misc] # Django has no types
    """Has no models, only a command."""

    name = "dibs.django"
    label = "dibs"
    verbose_name = "Dibs"
