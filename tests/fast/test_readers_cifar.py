from __future__ import annotations

import gzip
import hashlib
import os
import pickle
import struct
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from search_spaces.building_blocks.data_sets.image_parts import load_parts
from search_spaces.readers import cifar, published, small_images
from search_spaces.readers.cifar import read_cifar
from search_spaces.readers.pickled_data import read_pickled


@pytest.fixture(autouse=True)
def nothing_remembered() -> None:
    read_cifar.cache_clear()
    load_parts.cache_clear()


def made(count: int, classes: int, seed: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (count, 3072), dtype=np.uint8), rng.integers(0, classes, count)


def binary_10(folder: Path, per_batch: int = 6) -> tuple[Any, Any]:
    folder.mkdir(parents=True, exist_ok=True)
    parts = [made(per_batch, 10, seed) for seed in range(6)]
    for name, (pixels, labels) in zip(
        (*published.CIFAR_10_BINARY.train, "test_batch.bin"), parts, strict=True
    ):
        content = b"".join(bytes([c]) + p.tobytes() for p, c in zip(pixels, labels, strict=True))
        (folder / name).write_bytes(content)
    return np.concatenate([p for p, _ in parts[:5]]), np.concatenate([c for _, c in parts[:5]])


def test_cifar_10_binary(tmp_path: Path) -> None:
    pixels, labels = binary_10(tmp_path / "cifar-10-batches-bin")
    for source in (tmp_path, tmp_path / "cifar-10-batches-bin"):
        found = read_cifar(str(source))
        assert found.classes == 10
        assert found.train.pixels.shape == (30, 3, 32, 32)
        # Red, then green, then blue; row by row.
        assert found.train.pixels[7, 1, 2, 3] == pixels[7, 1024 + 2 * 32 + 3]
        assert found.train.classes.tolist() == labels.tolist()
        assert len(found.test) == 6


def test_cifar_100_binary_takes_the_fine_class(tmp_path: Path) -> None:
    for name, count in (("train.bin", 20), ("test.bin", 5)):
        pixels, fine = made(count, 100, count)
        content = b"".join(bytes([c // 5, c]) + p.tobytes() for p, c in zip(pixels, fine, strict=True))
        (tmp_path / name).write_bytes(content)
    found = read_cifar(str(tmp_path))
    assert found.classes == 100
    pixels, fine = made(20, 100, 20)
    assert found.train.classes.tolist() == fine.tolist()
    assert np.array_equal(found.train.pixels.reshape(-1, 3072), pixels)


# The python form, as Python 2 wrote it


def text(value: bytes) -> bytes:
    short = len(value) < 256
    return (b"U" + bytes([len(value)]) if short else b"T" + struct.pack("<i", len(value))) + value


def small(value: int) -> bytes:
    return b"K" + bytes([value]) if value < 256 else b"M" + struct.pack("<H", value)


def written_by_python_2(pixels: Any, labels: Any, key: bytes) -> bytes:
    """As cPickle of Python 2 with protocol 2 writes {data: array, key: list, batch_label: string}."""
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\nq\x01cnumpy\nndarray\nq\x02K\0\x85U\x01b\x87Rq\x03"
        b"(K\x01" + small(pixels.shape[0]) + small(pixels.shape[1]) + b"\x86"
        b"cnumpy\ndtype\nq\x04U\x02u1K\0K\x01\x87Rq\x05(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\0tb"
        b"\x89" + text(pixels.tobytes()) + b"tb"
    )
    listed = b"]q\x06(" + b"".join(small(int(label)) for label in labels) + b"e"
    entries = text(b"data") + array + text(key) + listed + text(b"batch_label") + text(b"batch 1 of 5")
    return b"\x80\x02}q\x00(" + entries + b"u."


def python_form(folder: Path, form: int, key: bytes, write: Any) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for seed, name in enumerate(published.CIFAR_FORMS[form].files):
        (folder / name).write_bytes(write(*made(6, 10, seed), key))


def test_python_form_of_python_2(tmp_path: Path) -> None:
    content = written_by_python_2(*made(6, 10, 0), b"labels")
    # The oracle: pickle itself, on what this test wrote.
    expected = pickle.loads(content, encoding="bytes")
    found = read_pickled(content, source="here")
    assert isinstance(found, dict)
    assert found.keys() == expected.keys() == {b"data", b"labels", b"batch_label"}
    assert np.array_equal(found[b"data"], expected[b"data"])
    assert found[b"labels"] == expected[b"labels"]
    python_form(tmp_path / "ten", 2, b"labels", written_by_python_2)
    python_form(tmp_path / "hundred", 3, b"fine_labels", written_by_python_2)
    ten, hundred = read_cifar(str(tmp_path / "ten")), read_cifar(str(tmp_path / "hundred"))
    assert (len(ten.train), ten.classes) == (30, 10)
    assert (len(hundred.train), hundred.classes) == (6, 100)
    assert ten.train.classes[6:12].tolist() == made(6, 10, 1)[1].tolist()
    assert np.array_equal(hundred.test.pixels.reshape(-1, 3072), made(6, 10, 1)[0])


@pytest.mark.parametrize("protocol", [2, 3, 4])
@pytest.mark.parametrize("keys", [bytes, str])
def test_python_form_of_python_3(tmp_path: Path, protocol: int, keys: type) -> None:
    def write(pixels: Any, labels: Any, key: bytes) -> bytes:
        content = {b"data": pixels, key: [int(c) for c in labels], b"batch_label": b"batch"}
        named = {k.decode() if keys is str else k: v for k, v in content.items()}
        return pickle.dumps(named, protocol=protocol)

    python_form(tmp_path, 2, b"labels", write)
    found = read_cifar(str(tmp_path))
    assert np.array_equal(found.train.pixels[:6].reshape(-1, 3072), made(6, 10, 0)[0])


# What must not run


class Evil:
    def __init__(self, called: Any, *arguments: Any) -> None:
        self.called, self.arguments = called, arguments

    def __reduce__(self) -> Any:
        return self.called, self.arguments


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_nothing_in_a_pickle_is_called(tmp_path: Path, protocol: int) -> None:
    target = tmp_path / "made"
    content = pickle.dumps({b"data": Evil(Path.touch, target), b"labels": []}, protocol=protocol)
    with pytest.raises(ValueError, match=r"here .*Take the binary form|here is no whole pickle"):
        read_pickled(content, source="here")
    pickle.loads(content)
    # It would have been made: the test can fail.
    assert target.exists()


def test_the_known_names_call_nothing_either(tmp_path: Path) -> None:
    for called, arguments in ((np.dtype, ("O",)), (np.ndarray, ((2,),))):
        with pytest.raises(ValueError, match="binary form"):
            read_pickled(pickle.dumps({b"data": Evil(called, *arguments)}, protocol=2), source="here")
    objects = pickle.dumps({b"data": np.array([Path("x")], dtype=object)}, protocol=2)
    with pytest.raises(ValueError, match="binary form"):
        read_pickled(objects, source="here")


def test_a_pickle_cut_anywhere_is_refused_in_a_sentence() -> None:
    content = written_by_python_2(*made(2, 10, 0), b"labels")
    for length in [*range(150), len(content) - 30, len(content) - 1]:
        with pytest.raises(ValueError, match=r"^here .*binary form"):
            read_pickled(content[:length], source="here")


# Wrong files


def test_wrong_files_are_named(tmp_path: Path) -> None:
    binary_10(tmp_path)
    last = tmp_path / "data_batch_5.bin"
    whole = last.read_bytes()
    last.write_bytes(whole[:-1])
    with pytest.raises(ValueError, match=r"data_batch_5.bin has 18437 bytes.*records of 3073"):
        read_cifar(str(tmp_path))
    last.write_bytes(whole[:-3073])
    with pytest.raises(ValueError, match=r"data_batch_5.bin has 5 images, and other batches have 6"):
        read_cifar(str(tmp_path))
    last.write_bytes(b"\x0b" + whole[1:])
    with pytest.raises(ValueError, match=r"data_batch_5.bin has the class 11, and there are 10"):
        read_cifar(str(tmp_path))
    last.unlink()
    with pytest.raises(FileNotFoundError, match=r"has no data_batch_5.bin, and the other files"):
        read_cifar(str(tmp_path))


@pytest.mark.parametrize(
    "content",
    [
        {b"data": np.zeros((2, 3071), np.uint8), b"labels": [0, 1]},
        {b"data": np.zeros((2, 3072), np.int64), b"labels": [0, 1]},
        {b"data": np.zeros((2, 3072), np.uint8), b"labels": [0]},
        {b"data": np.zeros((2, 3072), np.uint8), b"labels": [0, "one"]},
        {b"data": np.zeros((2, 3072), np.uint8)},
        [1, 2],
    ],
)
def test_a_pickle_of_something_else(tmp_path: Path, content: object) -> None:
    for name in published.CIFAR_10_PYTHON.files:
        (tmp_path / name).write_bytes(pickle.dumps(content, protocol=2))
    with pytest.raises(ValueError, match=r"data_batch_1 must be a dictionary with 'data'"):
        read_cifar(str(tmp_path))


def test_archives_are_checked_by_their_sums(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pixels, _ = binary_10(tmp_path / "cifar-10-batches-bin")
    path = tmp_path / "cifar-10-binary.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        archive.add(tmp_path / "cifar-10-batches-bin", "cifar-10-batches-bin")
    with pytest.raises(ValueError, match="is none of the published archives"):
        read_cifar(str(path))
    monkeypatch.setitem(cifar.ARCHIVES, hashlib.md5(path.read_bytes()).hexdigest(), path.name)
    assert np.array_equal(read_cifar(str(path)).train.pixels.reshape(-1, 3072), pixels)


# Parts


def test_parts_are_disjoint_and_normalised(tmp_path: Path) -> None:
    binary_10(tmp_path, per_batch=20)
    parts = load_parts(str(tmp_path), validation_part=0.2)
    assert [len(part) for part in (parts.train, parts.validation, parts.test)] == [80, 20, 20]
    pixels = parts.train.pixels.double()
    assert torch.allclose(parts.mean.flatten().double(), pixels.mean((0, 2, 3)))
    assert torch.allclose(parts.deviation.flatten().double(), pixels.std((0, 2, 3), correction=0))
    whole = torch.from_numpy(read_cifar(str(tmp_path)).train.pixels)
    back = (parts.validation.tensors[0] * parts.deviation + parts.mean).round().to(torch.uint8)
    held = {image.numpy().tobytes() for image in back}
    trained = {image.numpy().tobytes() for image in parts.train.pixels}
    assert held | trained == {image.numpy().tobytes() for image in whole}
    assert not held & trained
    few = load_parts(str(tmp_path), validation_part=0.2, train_samples=10)
    assert torch.equal(few.train.pixels, parts.train.pixels[:10])
    for wrong in (0.0, 1.0, 0.001):
        with pytest.raises(ValueError, match="on either side"):
            load_parts(str(tmp_path), validation_part=wrong)
    with pytest.raises(ValueError, match="has 80 to train with"):
        load_parts(str(tmp_path), validation_part=0.2, train_samples=81)


def test_the_digits_in_cifars_form(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, content in cifar.as_cifar("digits").items():
        (tmp_path / name).write_bytes(content)
    assert cifar.main(["check", str(tmp_path)]) == 0
    assert "900 images to train with, 897 to test with, 10 classes" in capsys.readouterr().out
    written, direct = read_cifar(str(tmp_path)), read_cifar("digits")
    assert np.array_equal(written.train.pixels, direct.train.pixels)
    assert np.array_equal(written.test.classes, direct.test.classes)
    from sklearn.datasets import load_digits

    known = load_digits()
    seen = direct.train.pixels[:, :, ::4, ::4]
    assert np.array_equal(seen[:, 0], seen[:, 2])
    ours = {(*image.flatten().tolist(), c.item()) for image, c in zip(seen[:, 0], direct.train.classes)}
    values = np.rint(known.images.reshape(-1, 64) * (255 / 16)).astype(int)
    theirs = {(*image, int(c)) for image, c in zip(values.tolist(), known.target)}
    assert ours <= theirs
    assert cifar.main(["check", str(tmp_path / "nowhere")]) == 1
    assert "is not there" in capsys.readouterr().err


# What cannot be read


def test_a_pipe_is_not_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "pipe")  # reading it would wait for ever
    assert cifar.main(["check", str(tmp_path / "pipe")]) == 1
    assert f"{tmp_path / 'pipe'} is no file and no folder. Name a folder or" in capsys.readouterr().err


def _zipped(content: bytes) -> bytes:
    """Without the time of day, which would be in the tests' names."""
    return gzip.compress(content, mtime=0)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "is no idx file of bytes"),
        (b"no gzip", r"is no whole gzip file \(Not a gzipped file"),
        (_zipped(b"\0\0\x08\1\0\0\0\2ab")[:-9], "is no whole gzip file"),
        (_zipped(b"\0\0\x08\1\0\0\0\2ab")[:10] + b"\xff" * 20, "is no whole gzip file"),
        (_zipped(b"\0\0\x08"), "is no idx file of bytes"),
        (_zipped(b"\0\0\x08\1\0\0\0\3ab"), "has 10 bytes, and names 11"),
        (_zipped(b"\0\0\x08\2\0\0\0\3ab"), "has 10 bytes, and names "),
    ],
)
def test_a_damaged_package_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, told: str
) -> None:
    monkeypatch.setattr(small_images, "FASHION_MNIST", tmp_path)
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"{path}.*{told}.*Install the package"):
        small_images.read_fashion_mnist()


def test_a_changed_pickle_is_read_or_refused() -> None:
    """Whatever a disk or a download makes of it."""
    whole = written_by_python_2(*made(2, 10, 0), b"labels")
    rng = np.random.default_rng(0)
    for _ in range(3000):
        changed = bytearray(whole)
        place = (
            rng.integers(0, len(whole)) if rng.random() < 0.2 else rng.choice([*range(150), *range(-60, 0)])
        )
        changed[place] = rng.integers(0, 256)
        try:
            read_pickled(bytes(changed), source="it")
        except ValueError as error:
            assert str(error).startswith("it ")
