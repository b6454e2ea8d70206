"""The methods that ship with fedbench; importing the package registers them.

A module of this package registers its methods, and nothing else has to be edited.
"""

from importlib import import_module
from pkgutil import iter_modules

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
