"""Sources of images: torchvision, folders, Parquet files, a set that ships with scikit-learn.

Importing the package registers what `data.name` takes.
"""

from importlib import import_module
from pkgutil import iter_modules

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
