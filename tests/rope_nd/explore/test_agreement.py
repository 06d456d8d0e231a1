"""What the page computes is what the library computes, for every choice that it offers."""

import itertools
import json

import pytest
import timm
import torch

from rope_nd.explore.tables import HEADS, WIDTHS, names
from rope_nd.presets import PRESETS
from rope_nd.registry import ROTARY, Host, make, scalings

TRAINED = {1: [9], 2: [5, 4], 3: [3, 4, 4], 4: [2, 3, 2, 2]}
TESTED = {1: [40], 2: [9, 7], 3: [4, 7, 5], 4: [3, 4, 3, 2]}
OPTIONS = {
    "truncate": [{"keep": 0.75, "min_turns": None}, {"keep": 0.5, "min_turns": 0.3}],
    "yarn": [{"slow": 0.75, "fast": 1.25}, {"slow": 0.1, "fast": 0.9}],
    "llama3": [{"low": 1, "high": 4}],
    "dynamic_ntk": [{"alpha": 1}, {"alpha": 2.5}],
}
RANKS = [
    (name, axes)
    for name in names()
    for axes in ((1, 2, 3, 4) if name in ROTARY or PRESETS[name].axes is None else (PRESETS[name].axes,))
]


def built(case):
    """The library's encoding of a case."""
    options = {"theta": case["theta"]} if "theta" in case else {}
    if case.get("coordinates", "own") != "own":
        options["coordinates"] = {"normalize": case["coordinates"]}
    if case.get("leftover") == "counts":
        options["split"] = tuple(case["split"])
    elif case.get("leftover", "even") != "even":
        options["leftover"] = case["leftover"] if case["leftover"] == "unrotated" else int(case["leftover"])
    if case["scaling"] != "own":
        rule = {case["scaling"]: case["options"]} if case["options"] else case["scaling"]
        along = case.get("along", "all")
        options["scaling"] = rule if along == "all" else [rule if a == int(along) else None for a in range(case["axes"])]
    width, trained = case["width"], tuple(case["trained"])
    found = make(case["encoding"], case["axes"], Host(HEADS * width, HEADS, width, 1, trained, 0), **options)
    return found[0] if isinstance(found, torch.nn.ModuleList) else found


@torch.no_grad()
def kernel(rope, case):
    """Scores of equal queries and keys at every offset of the plane, over that at offset zero, by turning real queries and keys."""
    extent, axes = case["tested"], case["axes"]
    y, x = case.get("y", axes - 2), case.get("x", axes - 1)
    ranges = [[held] for held in case.get("held", [0] * axes)]
    for a in {y, x} if axes > 1 else {x}:
        ranges[a] = range(1 - extent[a], extent[a])
    offsets = torch.tensor(list(itertools.product(*ranges)))  # [M, A]
    if y > x:
        shape = [len(ranges[x]), len(ranges[y])]
    strides = torch.tensor([int(torch.tensor(extent[a + 1 :]).prod()) for a in range(axes)])
    query = (-offsets).clamp(min=0)
    at, to = (query * strides).sum(-1), ((query + offsets) * strides).sum(-1)  # [M] each
    ones = torch.ones(1, HEADS, int(torch.tensor(extent).prod()), case["width"], dtype=torch.float64)
    q, k = rope.at(*extent).qk(ones, ones)
    score = (q[0, :, at] * k[0, :, to]).sum(-1) / (q[0, :, :1] * k[0, :, :1]).sum(-1)  # [H, M]
    one = score.mean(0) if case.get("head", "mean") == "mean" else score[int(case["head"])]
    return one.view(shape).T.flatten() if y > x else one


def scaled_cases(name, axes):
    """Every rule with its options, along all axes and along one."""
    base = {"encoding": name, "axes": axes, "width": 64, "trained": TRAINED[axes], "tested": TESTED[axes], "options": {}}
    if PRESETS.get(name) and name not in ROTARY:
        base["width"] = next(width for width in (64, *WIDTHS) if takes(name, axes, width))
    own = ["own"] if name in ("llama3", "llama3_2") else []
    rules = [rule for rule in (*own, *scalings(name)) if rule != "longrope"]
    found = [{**base, "scaling": rule, "options": options} for rule in rules for options in OPTIONS.get(rule, [{}])]
    if axes > 1:
        found.append({**base, "scaling": "yarn", "options": OPTIONS["yarn"][0], "along": "0"})
    return base, found


def cases(name, axes):
    """What the page offers for an encoding, one change at a time."""
    base, found = scaled_cases(name, axes)
    plain = {**base, "scaling": "none"}
    if name in ROTARY:
        found += [{**plain, "coordinates": c} for c in ("centred", "unit")]
        found += [{**plain, "coordinates": "centred", "scaling": rule} for rule in ("pi", "resonance")]
    if name == "axial":
        found += [{**plain, "leftover": leftover} for leftover in ("unrotated", *map(str, range(axes)))]
        found += [{**plain, "leftover": "counts", "split": list(range(3, 3 + axes)), "scaling": "ntk", "theta": 30.0}]
    if axes > 2:
        found += [{**plain, "held": [1] * axes}, {**plain, "y": axes - 1, "x": 0, "held": [1] * axes}]
    return found + [{**plain, "head": head} for head in ("0", "5")]


def takes(name, axes, width):
    try:
        make(name, axes, Host(HEADS * width, HEADS, width, 1, (14,) * axes, 0))
    except ValueError:
        return False
    return True


def vector_cases(name, axes):
    base = {"encoding": name, "axes": axes, "trained": TRAINED[axes], "tested": TRAINED[axes], "scaling": "none", "options": {}}
    found = [{**base, "width": width} for width in WIDTHS]
    return found if name == "wavelet_rotary" else [*found, {**base, "width": 96, "theta": 37.5}]


ASK = """
const cases = CASES, round = values => Array.from(values, value => +value.toPrecision(12));
return cases.map(given => {
  const state = { ...begin(given.encoding, given.axes), ...given }, wrong = problem(state);
  if (wrong) return { wrong };
  if (given.bare) return { vectors: round(vectors(state).w) };
  if (!choicesOf(state).heads.includes(state.head)) state.head = "mean";
  const { before, after } = compute(state), now = after ?? before, again = fromLink(toLink(state)), head = state.head;
  const speeds = Array.from({ length: now.heads * now.pairs }, (_, i) => size(now, Math.floor(i / now.pairs), i % now.pairs));
  return { kernel: round(plane(now, head, viewOf(state))), point: at(now, head, state.tested.map(n => n - 1)), code: code(state),
    speeds: state.scaling === "truncate" ? round(speeds) : [], same: toLink(again.state) === toLink(state), notes: again.notes };
});
"""


@pytest.fixture(scope="module")
def answers(calculate):
    """What the page says of all cases, asked at once."""
    asked = {rank: (cases(*rank), [{**case, "bare": True} for case in vector_cases(*rank)]) for rank in RANKS}
    flat = [case for both in asked.values() for part in both for case in part]
    told = iter(calculate(ASK.replace("CASES", json.dumps(flat))))
    return {rank: tuple([(case, next(told)) for case in part] for part in both) for rank, both in asked.items()}


@pytest.mark.parametrize(("name", "axes"), RANKS)
def test_the_page_and_the_library_have_the_same_kernel(answers, name, axes):
    for case, told in answers[name, axes][0]:
        expected, got = kernel(built(case), case), torch.tensor(told["kernel"], dtype=torch.float64)
        assert got.shape == expected.shape, case
        assert (got - expected).abs().max() < 1e-5, case
        if case.get("y") is None and not any(case.get("held", [])) and axes < 3:
            assert abs(told["point"] - float(expected[-1])) < 1e-5, case


@pytest.mark.parametrize(("name", "axes"), RANKS)
def test_every_width_and_theta_has_the_librarys_wave_vectors_or_its_refusal(answers, name, axes):
    for case, told in answers[name, axes][1]:
        if not takes(name, axes, case["width"]):
            with pytest.raises(ValueError) as refused:
                built(case)
            assert told["wrong"] == str(refused.value)
            continue
        rows = built(case).vectors().detach().double()  # [H|1, P, A]
        got = torch.tensor(told["vectors"], dtype=torch.float64).view(-1, max(rows.shape[1], case["width"] // 2), axes)
        close = (got[:, : rows.shape[1]] - rows).abs() <= 2e-7 * rows.norm(dim=-1, keepdim=True) + 1e-12
        assert bool(close.all()), case
        assert not got[:, rows.shape[1] :].any(), case


@pytest.mark.parametrize(("name", "axes"), RANKS)
def test_a_link_brings_back_the_state_it_was_made_from(answers, name, axes):
    for case, told in answers[name, axes][0]:
        assert told["same"] and not told["notes"], case


@pytest.mark.parametrize(("name", "axes"), RANKS)
def test_the_code_runs_and_makes_what_the_page_shows(answers, name, axes, monkeypatch):
    create = timm.create_model
    monkeypatch.setattr(timm, "create_model", lambda *given, **options: create(*given, depth=1, weight_init="skip", **options))
    wanted = {"none", "own", "truncate"}
    for case, told in answers[name, axes][0]:
        if not (case["scaling"] in wanted or "along" in case or "leftover" in case):
            continue
        wanted.discard(case["scaling"])
        made = {}
        exec(told["code"], made)
        rope = made["rope"] if "rope" in made else made["model"].encoding
        rope = rope[0] if isinstance(rope, torch.nn.ModuleList) else rope
        rope.prefix_tokens = 0
        assert (kernel(rope, case) - torch.tensor(told["kernel"], dtype=torch.float64)).abs().max() < 1e-5, told["code"]
