"""The timeline of an explorer: drag to zoom in, click a kernel for its dossier.

Functions
---------
zoomable   the timeline, redrawn at every choice
"""

from perfkit.widgets.timeline.view import Zoomable, zoomable

__all__ = ["Zoomable", "zoomable"]
