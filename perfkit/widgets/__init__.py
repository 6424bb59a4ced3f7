"""Views with controls for a person in JupyterLab; where nobody is, the same picture, still.

A view is one call, `widgets.views.gaps(seen)`, of the choice that is seen: an explorer, or a Selection. `follow` and
`after` show what any function makes of a Selection, at once or when it is there.
"""

from perfkit.widgets import pictures, tables, views
from perfkit.widgets.asides import after
from perfkit.widgets.choice import explorer
from perfkit.widgets.live import follow

__all__ = ["after", "explorer", "follow", "pictures", "tables", "views"]
