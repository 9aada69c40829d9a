import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

import fedssl
from fedssl.cli import main
from fedssl.errors import DataError, RunError
from fedssl.use.embed import embed, embed_one, find_images, read_parquet, write_parquet
from fedssl.use.search import duplicates, nearest, outliers
from fedssl.use.trained import load_trained


def naive(run: fedssl.Run, file: Path) -> torch.Tensor:
    """One image through the encoder by hand."""
    given = run.directory.encoder_description()["input"]
    pixels = torch.from_numpy(np.asarray(Image.open(file)).copy()).float() / 255
    x = (pixels - given["mean"][0]) / given["std"][0]
    with torch.no_grad():
        return run.encoder(x[None, None])[0]


def test_vectors_are_the_encoders(run: fedssl.Run, photos: Path, tmp_path: Path):
    file = tmp_path / "vectors.parquet"
    assert main(["embed", str(run.path), str(photos), "-o", str(file)]) == 0
    table = pq.read_table(file)
    assert table["path"].to_pylist() == sorted(str(p.relative_to(photos)) for p in photos.rglob("*.png"))
    assert table.schema.field("vector").type.list_size == 16
    for number in (0, 17, 59):
        expected = naive(run, photos / table["path"][number].as_py())
        assert table["vector"][number].as_py() == pytest.approx(expected.tolist(), abs=1e-5)
    read = read_parquet(file)
    assert read.root == photos.resolve()
    torch.testing.assert_close(read.vectors, embed(load_trained(run.path), photos).vectors)


def test_unreadable_files_are_left_out_and_named(run: fedssl.Run, photos: Path, tmp_path: Path):
    folder = tmp_path / "some"
    shutil.copytree(photos / "left", folder / "deep" / "er" / "still")
    (folder / "broken.png").write_text("not an image")
    (folder / ".hidden.png").write_text("nor looked at")
    (folder / "notes.txt").write_text("nor this")
    found = embed(load_trained(run.path), folder)
    assert len(found) == 30
    assert found.skipped == {"broken.png": "not an image"}


def test_errors_say_what_is_wrong(run: fedssl.Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    trained = load_trained(run.path)
    with pytest.raises(DataError, match="no folder"):
        find_images(tmp_path / "nowhere")
    with pytest.raises(DataError, match="contains no images"):
        find_images(tmp_path)
    (tmp_path / "bad.png").write_text("x")
    with pytest.raises(DataError, match="none of the 1 images"):
        write_parquet(trained, tmp_path, tmp_path / "out.parquet")
    assert not list(tmp_path.glob("*.parquet"))
    with pytest.raises(DataError, match="no image"):
        embed_one(trained, tmp_path / "gone.png")
    (tmp_path / "bad.parquet").write_text("x")
    with pytest.raises(DataError, match="does not contain embeddings"):
        read_parquet(tmp_path / "bad.parquet")
    with pytest.raises(RunError):
        load_trained(tmp_path)
    assert main(["search", str(run.path), str(tmp_path)]) == 2
    assert "what to search for is missing" in capsys.readouterr().err


def test_the_nearest_images_are_itself_and_its_class(run: fedssl.Run, photos: Path):
    trained = load_trained(run.path)
    found = embed(trained, photos)
    vector = embed_one(trained, photos / "right" / "07.png")
    hits = nearest(found, vector, 5)
    assert found.paths[hits[0].number] == "right/07.png"
    assert hits[0].similarity == pytest.approx(1.0)
    expected = torch.cosine_similarity(found.vectors.double(), vector.double()[None])
    assert [hit.number for hit in hits] == expected.argsort(descending=True)[:5].tolist()
    with pytest.raises(DataError, match="by another encoder"):
        nearest(found, vector[:3])


def test_duplicates_and_outliers_against_all_pairs(run: fedssl.Run, photos: Path, tmp_path: Path):
    folder = tmp_path / "some"
    shutil.copytree(photos / "left", folder)
    shutil.copy(folder / "03.png", folder / "copy-of-03.png")
    Image.fromarray(np.full((8, 8), 255, dtype=np.uint8)).save(folder / "white.png")
    found = embed(load_trained(run.path), folder)
    unit = torch.nn.functional.normalize(found.vectors, dim=1)
    similar = unit @ unit.T
    pairs = duplicates(found, 0.9999)
    assert found.paths[pairs[0].first], found.paths[pairs[0].second] == ("03.png", "copy-of-03.png")
    every = {(i, j) for i in range(len(found)) for j in range(i) if similar[i, j] >= 0.9999}
    assert {(pair.second, pair.first) for pair in pairs} == every
    means = [
        sorted(similar[i, [j for j in range(len(found)) if j != i]].tolist())[-5:] for i in range(len(found))
    ]
    order = np.argsort([np.mean(best) for best in means], kind="stable")
    assert [hit.number for hit in outliers(found, 3)] == order[:3].tolist()


def test_search_on_the_command_line(run: fedssl.Run, photos: Path, tmp_path: Path, capsys):
    picture = tmp_path / "strip.png"
    query = str(photos / "left" / "00.png")
    assert main(["search", str(run.path), query, str(photos), "-k", "3", "-o", str(picture)]) == 0
    assert capsys.readouterr().out.splitlines()[0] == " 1.0000  left/00.png"
    assert Image.open(picture).width > 300
    assert main(["search", str(run.path), str(photos), "--duplicates", "--outliers", "-k", "2"]) == 0
    assert "pairs with a cosine of at least 0.99" in capsys.readouterr().out
