"""Retrofitting, in small: the start is the original, the end turns alone, what moves is what was chosen, and runs go on."""

import dataclasses
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import nn

from rope_nd import hub
from train import checkpoint, cli
from train.checkpoint import CheckpointError
from train.retrofit import __main__ as command
from train.retrofit import model as models
from train.retrofit import schedule, state, weights
from train.retrofit.config import Config
from train.retrofit.distil import features
from train.retrofit.engine import Retrofit
from train.retrofit.images import files
from train.retrofit.picture import over_time

TINY = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 2, "num_heads": 3}
KINDS = {
    "dinov2": ("vit_small_patch14_dinov2", {"init_values": 0.5}),
    "clip": ("vit_base_patch32_clip_224", {"num_classes": 7}),
    "siglip": ("vit_base_patch16_siglip_224", {}),
    "deit": ("deit_tiny_distilled_patch16_224", {"num_classes": 5}),
}


def pretrained(kind: str) -> nn.Module:
    torch.manual_seed(0)
    name, options = KINDS[kind]
    model = timm.create_model(name, **TINY, **options)
    with torch.no_grad():
        for p in model.parameters():
            p += 0.1 * torch.randn_like(p)
        model.pos_embed *= 8  # so that positions matter
    return model.eval()


@pytest.fixture(scope="module")
def run(tmp_path_factory, pictures):
    """What makes the config of a small run."""
    root = tmp_path_factory.mktemp("runs")
    for kind in KINDS:
        save_file(pretrained(kind).state_dict(), root / f"{kind}.safetensors")

    def make(output: str, kind: str = "dinov2", **changes) -> Config:
        name, options = KINDS[kind]
        kwargs = tuple(f"{key}={value}" for key, value in {**TINY, **options}.items())
        usual = {"steps": 6, "batch_size": 4, "measure_every": 3, "save_every": 3, "measure_images": 2, "warmup_steps": 2}
        given = {"model": name, "model_kwargs": kwargs, "weights": root / f"{kind}.safetensors", "data": pictures, "threads": 1}
        return Config(**{**given, **usual, "output": root / output, "sizes": (16, 32), **changes})

    return make


# ---- schedules


def test_strength_goes_from_none_to_all_and_the_table_from_all_to_what_is_kept():
    config = Config("m", Path(), steps=100, strength_share=0.5, absolute_start=0.2, absolute_share=0.4, keep_absolute=0.25)
    assert [schedule.strength(step, config) for step in (0, 25, 50, 99)] == [0, 0.5, 1, 1]
    assert [schedule.absolute(step, config) for step in (0, 20, 40, 60, 99)] == pytest.approx([1, 1, 0.625, 0.25, 0.25])


def test_the_picture_draws_the_schedules_at_every_step_however_seldom_was_measured():
    config = Config("m", Path(), steps=100, strength_share=0.1, absolute_share=0.2)
    rows = [{"step": step, "size": 32, "patches": 0.5, "pooled": 0.5} for step in (0, 50, 100)]
    strength, absolute = (line.get_ydata() for line in over_time(rows, config).axes[1].lines)
    assert [strength[step] for step in (0, 5, 10, 100)] == [0, 0.5, 1, 1]
    assert [absolute[step] for step in (0, 5, 10, 100)] == [1, 0.75, 0.5, 0]


def test_a_share_of_nothing_is_a_jump():
    config = Config("m", Path(), steps=10, strength_share=0, absolute_start=0.5, absolute_share=0)
    assert schedule.strength(0, config) == 1
    assert [schedule.absolute(step, config) for step in (4, 5)] == [1, 0]


def test_the_rate_warms_up_and_ends_at_the_final_one():
    config = Config("m", Path(), steps=100, lr=1e-3, final_lr=1e-5, warmup_steps=10)
    rates = [schedule.rate(step, config) for step in range(100)]
    assert rates[0] == pytest.approx(1e-4) and max(rates) == pytest.approx(1e-3) and rates[-1] == pytest.approx(1e-5)
    assert all(a > b for a, b in pairwise(rates[11:]))


def test_sizes_are_drawn_by_seed_and_step_alone():
    drawn = [schedule.size(step, (16, 24, 32), 0) for step in range(300)]
    assert drawn == [schedule.size(step, (16, 24, 32), 0) for step in range(300)]
    assert drawn != [schedule.size(step, (16, 24, 32), 1) for step in range(300)]
    assert min(drawn.count(size) for size in (16, 24, 32)) > 70


# ---- models


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("encoding", ["axial", "dinov3"])
def test_a_student_starts_as_the_original(run, kind, encoding):
    plain, x = pretrained(kind), torch.randn(2, 3, 32, 32)
    student = models.student(plain, run("x", kind, encoding=encoding))
    torch.testing.assert_close(student(x), plain(x), atol=1e-6, rtol=1e-6)


def test_the_rule_counts_from_the_smallest_size_so_that_training_sees_finer_steps(run):
    def counted(**changes) -> tuple[int, ...]:
        return models.student(pretrained("dinov2"), run("x", **changes)).encoding.trained_extent

    assert counted(sizes=(16, 32)) == (2, 2)
    assert counted(sizes=(16, 32), trained_tokens=4) == (4, 4)


@pytest.mark.parametrize("kind", KINDS)
def test_folding_the_table_changes_no_output_at_any_size_and_leaves_no_mean(run, kind):
    student = models.student(pretrained(kind), run("x", kind))
    for size in (16, 32, 56):
        x = torch.randn(1, 3, size, size, generator=torch.Generator().manual_seed(size))
        before = models.student(pretrained(kind), run("x", kind)).forward_features(x)
        torch.testing.assert_close(models.fold(student).forward_features(x), before, atol=2e-5, rtol=1e-4)
    table, prefix = student._table()
    assert table[:, :prefix].abs().sum() == 0
    if student.patch_embed.proj.bias is not None:
        assert table[0, prefix:].mean(0).abs().max() < 1e-6


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_are_heard_after_every_so_many_blocks_but_the_last(kind):
    name, options = KINDS[kind]
    model, x = models.teacher(timm.create_model(name, **{**TINY, "depth": 6}, **options)), torch.randn(1, 3, 32, 32)
    heard = features(model, x, 1).inside
    assert len(heard) == 5 and not any(block._forward_hooks for block in model.blocks)
    torch.testing.assert_close(model.norm(model.blocks[5](heard[4])), model.forward_features(x))
    assert all(torch.equal(one, other) for one, other in zip(features(model, x, 2).inside, heard[1:4:2], strict=True))
    assert features(model, x).inside == features(model, x, 6).inside == ()


def test_the_teacher_does_not_learn_and_a_model_without_a_table_has_nothing_to_give():
    assert not any(p.requires_grad for p in models.teacher(pretrained("dinov2")).parameters())
    with pytest.raises(ValueError, match="no table of absolute positions"):
        models.teacher(timm.create_model("vit_tiny_patch16_224", **TINY, pos_embed="none"))


@pytest.mark.parametrize("kind, prefix", [("dinov2", 1), ("clip", 1), ("siglip", 0), ("deit", 2)])
def test_patch_tokens_are_what_is_left_after_the_prefix(kind, prefix):
    model, x = pretrained(kind), torch.randn(2, 3, 32, 32)
    found = features(model, x)
    torch.testing.assert_close(found.patches, model.forward_features(x)[:, prefix:])
    torch.testing.assert_close(found.pooled, model.forward_head(model.forward_features(x), pre_logits=True))
    assert found.patches.shape == (2, 16, 48) and found.pooled.shape == (2, 48) and found.extent == (4, 4)


# ---- which weights train


def moved(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> set[str]:
    return {name for name in before if not torch.equal(before[name], after[name])}


@pytest.mark.parametrize("train", ["qk", "attn", "all"])
def test_what_moves_is_what_was_chosen(run, train):
    learned = {"encoding": "axial", "encoding_kwargs": ("learned=True",)}
    retrofit = Retrofit(run(f"moves-{train}", train=train, weight_decay=0.1, steps=3, lr=1e-2, **learned))
    before = {name: value.clone() for name, value in retrofit.student.state_dict().items()}
    retrofit.fit()
    after = retrofit.student.state_dict()
    names = moved(before, after)
    assert "pos_embed" not in names
    assert {"norm.weight", "blocks.0.norm1.bias", "blocks.1.attn.qkv.weight", "encoding.0.freqs"} <= names
    assert ("blocks.0.attn.proj.weight" in names) == (train != "qk")
    assert ("blocks.0.mlp.fc1.weight" in names) == ("cls_token" in names) == (train == "all")
    width, values = 48, ("blocks.0.attn.qkv.weight", "blocks.1.attn.qkv.bias")
    for name in values:
        assert torch.equal(before[name][2 * width :], after[name][2 * width :]) == (train == "qk")
        assert not torch.equal(before[name][:width], after[name][:width])


def test_low_rank_additions_need_peft_and_say_so(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ValueError, match=r"pip install 'rope_nd\[retrofit\]'"):
        Retrofit(run("none", train="lora"))


def test_low_rank_additions_move_alone_and_are_merged_at_the_end(run):
    pytest.importorskip("peft")
    retrofit = Retrofit(run("lora", train="lora", rank=2, lr=1e-2))
    assert all("lora_" in name or "norm" in name for name in retrofit.weights)
    before = retrofit.student.state_dict()["blocks.0.attn.qkv.base_layer.weight"].clone()
    retrofit.fit()
    after = load_file(retrofit.folder / "model.safetensors")
    assert set(after) == set(pretrained("dinov2").state_dict())
    change = after["blocks.0.attn.qkv.weight"] - before
    assert 0 < torch.linalg.matrix_rank(change, atol=1e-5) <= 2


def test_a_model_whose_projections_have_other_names_needs_all(run):
    with pytest.raises(ValueError, match="choose all"):
        weights.chosen(nn.Sequential(nn.Linear(2, 2)), "qk")


# ---- whole runs


@pytest.mark.parametrize("kind", KINDS)
def test_every_class_retrofits_and_loads_again_and_into_the_original(run, kind):
    config = run(f"kind-{kind}", kind, steps=3, encoding="dinov3" if kind == "clip" else "axial")
    Retrofit(config).fit()
    model, _ = models.load(config.output)
    pretrained(kind).load_state_dict(load_file(config.output / "model.safetensors"), strict=True)
    x = torch.randn(1, 3, 40, 48)
    with torch.no_grad():
        turned = model(x)
        assert torch.isfinite(turned).all()
        model.pos_embed.normal_()
    torch.testing.assert_close(model(x), turned)  # the table is not read


def test_the_loss_falls_and_the_student_grows_like_its_teacher(run):
    at_once = {"strength_share": 0.0, "absolute_share": 0.0, "fold": False}  # the whole loss is there from the first step on
    config = run("learns", steps=40, batch_size=8, lr=3e-3, train="all", measure_every=40, sizes=(32,), measure_images=4, **at_once)
    losses: list[float] = []
    retrofit = Retrofit(config, lambda event: losses.append(event["loss"]) if "loss" in event else None)
    retrofit.fit()
    first, last = retrofit.rows[0], retrofit.rows[-1]
    assert (first["step"], last["step"]) == (0, 40)
    assert last["pooled"] > first["pooled"] + 0.3
    assert sum(losses[-5:]) < 0.7 * sum(losses[:5])


@pytest.mark.parametrize("ema", [0.0, 0.9])
def test_a_run_that_was_interrupted_ends_with_the_same_weights(run, ema):
    straight, parts = run(f"straight-{ema}", ema=ema, rescale_coords=1.2), run(f"parts-{ema}", ema=ema, rescale_coords=1.2)
    Retrofit(straight).fit()
    Retrofit(dataclasses.replace(parts, stop_after=3)).fit()
    assert not (parts.output / "model.safetensors").exists()
    again = Retrofit(parts)
    again.fit()
    one, two = (load_file(config.output / "model.safetensors") for config in (straight, parts))
    assert not moved(one, two)
    assert [row["step"] for row in again.rows] == [0, 0, 3, 3, 6, 6]


def test_a_torn_checkpoint_is_not_seen_and_one_of_another_run_is_refused(run):
    config = run("torn", stop_after=2)
    Retrofit(config).fit()
    (config.output / "checkpoints" / ".step-000000004.tmp").mkdir()
    found, _ = state.read(config, config.output)
    assert found is not None and found.step == 2
    assert [path.name for path in checkpoint.steps(config.output / "checkpoints")] == ["step-000000002"]
    with pytest.raises(ValueError, match=r"lr=0\.0001, not 0\.1"):
        state.read(dataclasses.replace(config, lr=0.1), config.output)
    (config.output / "checkpoints" / "step-000000002" / "weights.safetensors").write_bytes(b"no")
    with pytest.raises(CheckpointError, match=r"weights\.safetensors: cut off"):
        state.read(config, config.output)


def test_a_part_of_the_table_can_stay(run):
    config = run("keeps", keep_absolute=0.5, steps=2)
    Retrofit(config).fit()
    model, _ = models.load(config.output)
    assert model.wrapped.absolute == 0.5 and model.encoding.strength == (1.0, 1.0)
    again, images = hub.load(config.output), torch.randn(1, 3, 40, 48)  # by the library alone
    with torch.no_grad():
        torch.testing.assert_close(again(images), model(images), rtol=0, atol=0)


def test_a_run_leaves_its_config_its_fidelity_and_pictures(run):
    config = run("files", steps=3)
    Retrofit(config).fit()
    assert Config.load(config.output / "config.json") == config
    lines = (config.output / "fidelity.csv").read_text().splitlines()
    assert lines[0].startswith("step,seconds,strength,absolute,loss,size,patches,pooled") and len(lines) == 5
    assert Image.open(config.output / "fidelity.png").width > 500


def test_features_are_drawn_beside_each_other(run):
    from train.retrofit import picture

    config = run("drawn", steps=2)
    Retrofit(config).fit()
    picture.main(config.output, files(config.data)[0], sizes=(16, 32))
    assert Image.open(config.output / "features.png").height > 300


@pytest.mark.parametrize(
    "changes, told",
    [
        ({"train": "some"}, "unknown train 'some'"),
        ({"steps": 0}, "steps=0"),
        ({"absolute_start": 0.8, "absolute_share": 0.5}, "at most 1"),
        ({"crop": 0.0}, "crop=0.0"),
        ({"cosine": 0.0, "smooth": 0.0}, "not both 0"),
        ({"home": (64, 32)}, "smallest size"),
        ({"keep_absolute": 2.0}, "a share"),
        ({"sizes": (16, 0)}, "at least 1"),
    ],
)
def test_bad_choices_are_named(run, changes, told):
    with pytest.raises(ValueError, match=told):
        run("bad", **changes)


@pytest.mark.parametrize(
    "changes, told",
    [
        ({"sizes": (20,)}, "no multiple of the patch 8: the nearest is 16"),
        ({"weights": None}, "no weights to start from"),
        ({"encoding": "alibi"}, "has none"),
        ({"model": "vit_of_nobody"}, "cannot make model"),
    ],
)
def test_what_cannot_run_is_refused_before_it_does(run, changes, told):
    with pytest.raises(ValueError, match=told):
        Retrofit(run("bad", **changes))


def test_the_command_says_one_line_and_ends_with_2(run, monkeypatch, capsys):
    config = run("cli")
    monkeypatch.setattr(sys, "argv", ["x", "--model", config.model, "--data", str(config.data / "none"), "--pretrained"])
    with pytest.raises(SystemExit) as ended:
        cli.run(command.main, "x")
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("error: ") and not (config.output).exists()
