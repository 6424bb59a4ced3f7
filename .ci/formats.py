"""Write one small file of each format into a folder, and print the format and the path of each."""

import sys
from pathlib import Path

sys.path.insert(0, "tests")
sys.path.insert(0, "data")
from fuzz import families

for name in families.FAMILIES:
    seed = families.seeds(name)[0]
    folder = Path(sys.argv[1], name)
    folder.mkdir(parents=True)
    sys.stdout.write(f"{name} {seed.write(folder)}\n")
