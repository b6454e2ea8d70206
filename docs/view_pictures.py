"""Draw docs/static/views/NAME.jpg, a photograph and seven draws of each view, for plugins.md.

The photograph is scikit-learn's flower.jpg (Flickr user vultilion, CC BY 2.0), cut to a square.
"""

from pathlib import Path

import torch
from PIL import Image
from sklearn.datasets import load_sample_image

from fedbench.bench.data.views.recipes import VIEWS
from fedbench.bench.data.views.views import MEAN, STD, make_view
from fedbench.bench.system.seeding import generator

SIDE, DRAWS = 64, 7


def main() -> None:
    """Write the pictures of all views."""
    folder = Path(__file__).parent / "static" / "views"
    folder.mkdir(exist_ok=True)
    photograph = Image.fromarray(load_sample_image("flower.jpg")).crop((180, 20, 560, 400))
    pixels = torch.frombuffer(
        bytearray(photograph.resize((SIDE, SIDE)).tobytes()), dtype=torch.uint8
    )
    image = pixels.view(1, SIDE, SIDE, 3).permute(0, 3, 1, 2).contiguous()
    for name, recipe in VIEWS.items():
        drawn = make_view(name, image.repeat(DRAWS, 1, 1, 1), generator(0, "pictures", name))
        unit = drawn * STD + MEAN if recipe.normalised else drawn
        views = (unit.clamp(0, 1) * 255).round().to(torch.uint8)
        strip = torch.cat([image, views]).permute(2, 0, 3, 1).reshape(SIDE, -1, 3)
        Image.fromarray(strip.numpy()).save(folder / f"{name}.jpg", quality=85)


if __name__ == "__main__":
    main()
