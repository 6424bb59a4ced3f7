"""The wheel holds the students' versions of the labs; the repository holds the instructors'."""

import json
import runpy
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Labs(BuildHookInterface):
    """Put the labs into the wheel as nbgrader would release them."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the students' versions into a temporary folder, from which the builder takes them."""
        labs = Path(self.root, "notebooks", "labs")
        students = Path(self.root, "perfkit", "report", "students.py")
        released = runpy.run_path(str(students))["released"]
        self.made = tempfile.TemporaryDirectory()
        for path in [] if version == "editable" else sorted(labs.glob("lab*.ipynb")):
            notebook = json.loads(path.read_text(encoding="utf-8"))
            for cell in notebook["cells"]:
                cell["source"] = "".join(cell["source"])
            place = Path(self.made.name, path.name)
            place.write_text(
                json.dumps(released(notebook), indent=1, ensure_ascii=False) + "\n",
                encoding="utf-8",
            )
            build_data["force_include"][str(place)] = f"perfkit/notebooks/labs/{path.name}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the temporary folder."""
        self.made.cleanup()
