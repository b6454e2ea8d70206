"""Rules by which clients get training images; importing the package registers them.

A module of this package adds its rules to `PARTITIONERS`, and nothing else has to be edited.
"""

from importlib import import_module
from pkgutil import iter_modules

from fedbench.bench.config.partitioners.registry import PARTITIONERS as PARTITIONERS
from fedbench.bench.config.partitioners.registry import fields_not_read as fields_not_read

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
