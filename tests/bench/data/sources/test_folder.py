"""Files of a folder: which are images, which are hidden, and which are left out with a word."""

import logging
from pathlib import Path

import pytest

from fedbench.bench.data.datasets import load_dataset, prepare
from tests.bench.data.files import folder, refused, shade, write_images


def write(root: Path, **more: bytes) -> str:
    """Write 12 images in each of two classes, and more files at their paths."""
    name = folder(root, a=12, b=12)
    for place, content in more.items():
        (root / place).parent.mkdir(parents=True, exist_ok=True)
        (root / place).write_bytes(content)
    return name


@pytest.mark.parametrize(
    ("form", "names"),
    [
        ("GIF", ("x.gif", "x.GIF", "x")),
        ("JPEG", ("x.jfif", "x.jpe", "x.pjpeg", "x.JPG", "x", "scan.001", "x.jpg?width=20")),
        ("WEBP", ("x.webp", "x")),
        ("BMP", ("x.dib", "x")),
        ("TIFF", ("x.tiff", "x")),
        ("PPM", ("x.pnm", "x")),
        ("PNG", ("x.apng", "x.", "no ending at all")),
    ],
)
def test_an_image_is_known_by_its_ending_or_without_one_by_its_content(
    form: str, names: tuple[str, ...], tmp_path: Path
) -> None:
    content = shade(200, form=form)
    for number, name in enumerate(names):
        dataset = load_dataset(write(tmp_path / str(number), **{f"a/{name}": content}), tmp_path)
        assert len(dataset.train_labels) + len(dataset.test_labels) == 25


@pytest.mark.parametrize(
    ("place", "why", "said"),
    [
        ("a/x.heic", "ending .heic", True),
        ("a/x.png.bak", "ending .bak", True),  # else an image would be there twice
        ("a/x.jpg~", "ending .jpg~", True),
        ("x.zip", "ending .zip", True),
        ("x.png", "in no class folder", True),
        ("a/note.txt", "ending .txt", False),
        ("README", "no ending, and not of an image", False),
        ("a/._x.png", "hidden", False),
        ("a/.ipynb_checkpoints/x.png", "hidden", False),
        ("__MACOSX/a/x.png", "hidden", False),
        (".Trash/x.png", "hidden", False),
        ("a/@eaDir/x.png/SYNOPHOTO_THUMB_M.jpg", "hidden", False),
    ],
)
def test_what_is_left_out_is_counted(
    place: str, why: str, said: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    content = shade(200) if said or why == "hidden" else b"only text"
    with caplog.at_level(logging.WARNING):
        prepared = prepare(write(tmp_path / "set", **{place: content}))
    assert prepared.num_train + prepared.num_test == 24
    (left,) = prepared.left_out or ()
    assert (left["why"], left["count"]) == (why, 1)
    assert place.startswith(str(Path(left["first"][0]).relative_to(tmp_path / "set")))
    assert (f"1 ({why}): " in caplog.text) == said


def test_a_table_beside_images_without_class_folders_is_refused(tmp_path: Path) -> None:
    for name, remedy in (
        ("metadata.csv", "file:.*/metadata.csv,"),
        ("metadata.jsonl", "file:FILE.csv"),
    ):
        for place in (name, f"train/{name}"):
            root = tmp_path / place.replace("/", "-")
            write_images(root / "train", 12)
            (root / place).write_text("file_name,label\n")
            refused(f"folder:{root}", rf"{place}.*read {remedy}")
    # Class folders name the labels; the table is left out.
    name = write(tmp_path / "classes", **{"metadata.csv": b"file_name,label\n"})
    (left,) = prepare(name).left_out or ()
    assert left["why"] == "ending .csv"


def test_images_beside_those_that_a_table_names_are_said(tmp_path: Path) -> None:
    write(tmp_path / "set", **{"a/._x.png": b"", "a/note.txt": b""})
    lines = [f"{name}/{i}.png,{name}" for name in "ab" for i in range(10)]
    (tmp_path / "set" / "t.csv").write_text("\n".join(["file,label", *lines]))
    (left,) = prepare(f"file:{tmp_path / 'set' / 't.csv'}").left_out or ()
    assert (left["why"], left["count"]) == ("not named in t.csv", 4)
    assert [Path(file).name for file in left["first"]] == ["10.png", "11.png"] * 2
