"""Saved models come back as they were, and what cannot be saved says so."""

import json
import subprocess
import sys

import pytest
import timm
import torch
from safetensors.torch import load_file, save_file

import models  # noqa: F401  (registers its entries)
from rope_nd import RoPE, fade, hub, list_encodings, wrap

SMALL = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2, "num_classes": 5}
VIT = "vit_tiny_patch16_224"


def moved(model):
    """The model with other weights than a fresh one has, also where it starts at zero."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.02 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    return model.eval()


def same(first, second, *inputs):
    with torch.no_grad():
        torch.testing.assert_close(second(*inputs), first(*inputs), rtol=0, atol=0)


@pytest.mark.parametrize("encoding", list_encodings())
def test_every_encoding_comes_back_bit_for_bit_at_other_sizes_too(encoding, tmp_path):
    torch.manual_seed(0)
    model = moved(wrap(timm.create_model(VIT, **SMALL), encoding))
    hub.save(model, tmp_path)
    again = hub.load(tmp_path)
    same(model, again, torch.randn(2, 3, 32, 32))
    same(model, again, torch.randn(1, 3, 40, 56))


@pytest.mark.parametrize(
    "options",
    [
        {"theta": 50.0, "scaling": "yarn", "trained_extent": (3, 3)},
        {"keep_pos_embed": "absolute", "strength": (0.25, 0.5), "antialias": False},
        {"scaling": ["pi", "none"], "temperature": "log", "augment": {"shift": 0.5}},
        {"axes": 3, "tubelet": 2, "frames": 4, "spacing": (0.125, 1.0, 1.0), "attention": "factorised"},
    ],
)
def test_options_come_back(options, tmp_path):
    model = moved(wrap(timm.create_model(VIT, in_chans=1, **SMALL), "axial", **options))
    hub.save(model, tmp_path)
    clip = (4,) if "axes" in options else ()
    same(model, hub.load(tmp_path), torch.randn(2, 1, *clip, 40, 56))


@pytest.mark.parametrize(
    ("name", "encoding", "size"),
    [
        ("vit_small_patch16_dinov3", "native", 64),
        ("eva02_tiny_patch14_224", "native", 56),
        ("deit_tiny_distilled_patch16_224", "mixed", 64),
        ("cait_xxs24_224", "axial", 64),
        ("beit_base_patch16_224", "alibi", 64),
    ],
)
def test_models_of_other_families_come_back(name, encoding, size, tmp_path):
    model = moved(wrap(timm.create_model(name, num_classes=3, img_size=size, depth=1), encoding))
    hub.save(model, tmp_path)
    same(model, hub.load(tmp_path), torch.randn(1, 3, size, size))


def test_a_ready_model_of_clips_loads_where_only_the_library_is(tmp_path):
    name = "rope_video_vit_tiny_patch16_224"
    model = moved(timm.create_model(name, encoding="mixed", depth=1, num_classes=3, frames=4, tubelet=2, img_size=32))
    hub.save(model, tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["architecture"] == "vit_base_patch16_224"
    clip = torch.randn(1, 3, 4, 32, 48)
    with torch.no_grad():
        save_file({"clip": clip, "answer": model(clip)}, tmp_path / "case.safetensors")
    code = (
        "import sys, torch; from safetensors.torch import load_file; from rope_nd import hub\n"
        f"case = load_file({str(tmp_path / 'case.safetensors')!r})\n"
        f"with torch.no_grad(): found = hub.load({str(tmp_path)!r})(case['clip'])\n"
        "assert 'models' not in sys.modules; torch.testing.assert_close(found, case['answer'])"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)


def test_what_was_faded_comes_back_as_faded(tmp_path):
    model = moved(wrap(timm.create_model(VIT, **SMALL), "axial", keep_pos_embed="absolute", strength=0.0))
    fade(model, strength=0.75, absolute=0.25)
    hub.save(model, tmp_path)
    same(model, hub.load(tmp_path), torch.randn(1, 3, 48, 48))


def test_scaling_can_be_changed_as_a_model_is_loaded(tmp_path):
    model = moved(wrap(timm.create_model(VIT, **SMALL), "axial"))
    hub.save(model, tmp_path)
    scaled = wrap(timm.create_model(VIT, **SMALL), "axial", scaling="pi").eval()
    scaled.load_state_dict(model.state_dict())
    same(scaled, hub.load(tmp_path, scaling="pi"), torch.randn(1, 3, 64, 64))
    with pytest.raises(ValueError, match="theta"):
        hub.load(tmp_path, theta=3.0)


def test_labels_and_preprocessing_come_back(tmp_path):
    model = wrap(timm.create_model(VIT, pretrained_cfg_overlay={"mean": (0.1, 0.2, 0.3)}, **SMALL), "axial")
    hub.save(model, tmp_path)
    assert tuple(hub.load(tmp_path).pretrained_cfg["mean"]) == (0.1, 0.2, 0.3)


def test_saving_leaves_the_model_as_it_was(tmp_path):
    model = wrap(timm.create_model(VIT, **SMALL), "axial").train()
    state = torch.get_rng_state()
    hub.save(model, tmp_path)
    assert model.training and torch.equal(state, torch.get_rng_state())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["README.md", "config.json", "model.safetensors"]


def test_what_cannot_be_saved_says_why(tmp_path):
    with pytest.raises(ValueError, match="was not wrapped"):
        hub.save(timm.create_model(VIT, **SMALL), tmp_path)
    rope = RoPE(16, axes=2, prefix_tokens=1)
    with pytest.raises(ValueError, match="encoding was given as a RoPE"):
        hub.save(wrap(timm.create_model(VIT, **SMALL), rope), tmp_path)
    model = wrap(timm.create_model(VIT, **SMALL), "axial")
    model._model_args = {}  # as timm before 1.0.31 leaves it
    with pytest.raises(ValueError, match="model_args"):
        hub.save(model, tmp_path)
    assert not list(tmp_path.iterdir())
    hub.save(model, tmp_path, model_args=SMALL)
    same(model.eval(), hub.load(tmp_path), torch.randn(1, 3, 32, 32))


def test_what_cannot_be_loaded_says_why(tmp_path):
    with pytest.raises(ValueError, match=r"no readable config.json"):
        hub.load(tmp_path)
    model = wrap(timm.create_model(VIT, **SMALL), "axial")
    hub.save(model, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    for wrong, told in (
        ({**config, "architecture": "hf-hub:someone/something"}, "hf-hub:someone/something"),
        ({**config, "rope_nd": None}, "says nothing of rope_nd"),
        ({**config, "rope_nd": {"wrap": {"encoding": "axail"}}}, "axail"),
        ({**config, "num_classes": 7}, "weights of another model"),
        ([], "a JSON object"),
    ):
        (tmp_path / "config.json").write_text(json.dumps(wrong))
        with pytest.raises(ValueError, match=told):
            hub.load(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config))
    weights = load_file(tmp_path / "model.safetensors")
    weights.pop("head.bias")
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"no head\.bias"):
        hub.load(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"broken")
    with pytest.raises(ValueError, match="no readable"):
        hub.load(tmp_path)


def test_the_card_holds_the_call_and_what_is_said(tmp_path):
    hub.save(wrap(timm.create_model(VIT, **SMALL), "axial", theta=50.0), tmp_path, about="| size | accuracy |")
    text = (tmp_path / "README.md").read_text()
    assert "theta=50.0" in text and "| size | accuracy |" in text and "library_name: rope_nd" in text


def test_a_model_is_pushed_as_it_is_saved(monkeypatch, tmp_path):
    """The upload itself is huggingface_hub's; what is given to it is kept here."""
    import huggingface_hub

    sent = {}

    class Api:
        def create_repo(self, repo_id, **options):
            sent["repo"] = (repo_id, options)

        def upload_folder(self, *, repo_id, folder_path, commit_message):
            again = hub.load(folder_path)
            sent["model"] = again
            return type("Commit", (), {"commit_url": "address"})()

    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    model = moved(wrap(timm.create_model(VIT, **SMALL), "mixed"))
    assert hub.push(model, "me/mine", private=True) == "address"
    assert sent["repo"] == ("me/mine", {"private": True, "exist_ok": True})
    same(model, sent["model"], torch.randn(1, 3, 32, 32))
