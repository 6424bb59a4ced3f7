"""The type by which a notebook holds a picture, and the version of Vega-Lite that draws it."""

# JupyterLab draws this type without network access and papermill stores it; Altair's own type for
# Vega-Lite 6 has neither property. The version in it only selects JupyterLab's viewer.
MIME = "application/vnd.vegalite.v5+json"
VEGA_LITE = "6.4"
