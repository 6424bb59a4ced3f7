"""Views with controls for a person in JupyterLab; where nobody is, the same picture, still."""

from perfkit.widgets import views
from perfkit.widgets.choice import explorer
from perfkit.widgets.live import follow
from perfkit.widgets.views import after

__all__ = ["after", "explorer", "follow", "views"]
