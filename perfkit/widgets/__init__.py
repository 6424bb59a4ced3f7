"""Views with controls for a person in JupyterLab; where nobody is, the same picture, still."""

from perfkit.widgets.live import live_monitor

__all__ = ["live_monitor"]
