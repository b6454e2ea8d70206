"""Names of data sets by their content.

An entry of `REVISIONS` is the `sha256` that `fedbench data prepare NAME --json` prints for the
whole set. That of `cifar10` is of a lossless Parquet copy, checked against published facts: 5,000
and 1,000 images per class; the first labels 6 9 9 4 1 1 2 7 8 3 and 3 8 8 0 6 6 1 6 3 1 and the
first pixels (59, 62, 63) and (158, 112, 49) of the official `data_batch_1` and `test_batch`;
channel means 0.4914 0.4822 0.4465 and deviations 0.2470 0.2435 0.2616. The other sets of
torchvision and TinyImageNet are known by their source and size.
"""

from collections.abc import Mapping

REVISIONS: Mapping[str, str] = {
    "59139dbe5d0ee6883fe094e9d4bede5cc70aead9d5644242274607aaea46c287": "digits",
    "1a11b3d28f302a873dc3eb263a3e0a649a0e8461dae9fd13cc6d2db41af452de": "cifar10",
    "31a55a9d84f5345f54eb44cc87d8c56dfb5fead586e2f592c6af0aac6fee92f2": "fashion-small",
    "eb0b7eee2930cd6ab07c53324edcd0cc409fe1d48f2ad472faef3881b67f3304": "fashion-mnist",
}
"""Revision of the whole set -> its name."""
