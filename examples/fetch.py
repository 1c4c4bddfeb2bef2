"""Write the documentation of some modules, named as arguments, to pages.txt in the directory it is run in."""

import importlib
import inspect
import sys
from pathlib import Path

pages = [inspect.getdoc(importlib.import_module(name)) or "" for name in sys.argv[1:]]
Path("pages.txt").write_text("\n".join(pages) + "\n")
print(f"{len(pages)} pages")
