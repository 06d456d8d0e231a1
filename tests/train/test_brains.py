"""Cubes of brains: cut where the atlas says, with the millimetres and the place that they truly have. Nothing is fetched here."""

import numpy as np
import pytest
import torch

from train import brains
from train.readers import Volume, VolumeFolder, read_volume

pytest.importorskip("nibabel")
NAMES = "1 Precentral_L 2001\n2 Insula_R 3002\n3 Fusiform_L 5401\n4 Vermis_3 9110\n"


def brain(shape=(40, 44, 48), mm=1.0, origin=(-24.0, -22.0, -20.0)) -> Volume:
    """Voxels whose value tells their place, (right, anterior, superior) of the first at `origin`."""
    z, y, x = (torch.arange(n, dtype=torch.float32) for n in shape)
    affine = torch.zeros(4, 4, dtype=torch.float64)
    affine[0, 2] = affine[1, 1] = affine[2, 0] = mm
    affine[:3, 3], affine[3, 3] = torch.tensor(origin, dtype=torch.float64), 1
    values = (z[:, None, None] + 2 * y[:, None] + 0.5 * x) % 251
    return Volume(values.floor()[None], torch.full((3,), mm, dtype=torch.float64), affine)


@pytest.mark.parametrize("mm, count", [(1.0, 8), (0.5, 16)])
def test_a_cube_holds_the_voxels_about_its_middle_and_says_where_they_are(mm, count):
    whole = brain(mm=mm)
    point = np.array([-10.0, -12.0, -13.0])
    found = brains.cube(whole, point, side=8.0)
    assert found.voxels.shape == (1, count, count, count)
    for at in ((0, 0, 0), (3, 1, 7), (count - 1, count - 1, count - 1)):
        place = (found.affine @ torch.tensor([*at, 1.0], dtype=torch.float64)).numpy()
        index = np.linalg.solve(whole.affine.numpy(), place)[:3].round().astype(int)
        assert found.voxels[(0, *at)] == whole.voxels[(0, *index)]
    centre = found.affine @ torch.tensor([*[(count - 1) / 2] * 3, 1.0], dtype=torch.float64)
    assert np.abs(centre.numpy()[:3] - point).max() <= mm / 2 + 1e-9


def test_beyond_the_file_a_cube_is_empty():
    found = brains.cube(brain(), np.array([-24.0, -22.0, -20.0]), side=8.0)
    assert (found.voxels[0, :3] == 0).all() and (found.voxels[0, 4:, 4:, 4:] > 0).any()


def test_the_atlas_is_read_by_the_codes_of_its_list_and_both_sides_are_one_region():
    found = brains.by_region(torch.tensor([[[0.0, 1.0, 2.0, 3.0, 4.0]]]), NAMES)
    names = list(brains.REGIONS)
    assert [names[i] if i >= 0 else None for i in found.flatten()] == [None, "frontal", "insula", "temporal", "cerebellum"]
    assert len(names) == 10 and len({code for codes in brains.REGIONS.values() for code in codes}) == sum(
        map(len, brains.REGIONS.values())
    )


def test_middles_are_in_their_region_with_enough_of_it_about_them():
    regions = torch.full((30, 30, 30), -1)
    regions[8:24, 5:25, 6:20] = 3
    regions[10, 10, 10] = 4
    found = brains.middles(regions, 3)
    assert len(found) and len(brains.middles(regions, 4)) == 0
    inside = (regions == 3).numpy().astype(float)
    reach = brains.ABOUT // 2
    padded = np.pad(inside, reach)
    share = {
        (z, y, x): padded[z : z + brains.ABOUT, y : y + brains.ABOUT, x : x + brains.ABOUT].mean()
        for z, y, x in np.argwhere(inside).tolist()
    }
    assert {tuple(at) for at in found.tolist()} == {at for at, much in share.items() if much >= brains.SHARE - 1e-6}


def test_cubes_are_read_back_with_their_spacing_and_every_region_has_as_many(tmp_path):
    whole, regions = brain((60, 60, 60), origin=(-30.0, -30.0, -30.0)), torch.full((60, 60, 60), -1)
    for number in range(len(brains.REGIONS)):
        z, y = divmod(number, 5)
        regions[10 + 22 * z : 30 + 22 * z, 2 + 11 * y : 13 + 11 * y, 10:50] = number
    fine = brain((120, 120, 120), 0.5, (-30.0, -30.0, -30.0))
    brains.cut(fine, whole, regions, 2, np.random.default_rng(0), tmp_path)
    data = VolumeFolder(tmp_path, size=(16, 16, 16), spacing=(2.0, 2.0, 2.0), spaced=True)
    assert data.classes == sorted(brains.REGIONS) and data.labels == [i // 2 for i in range(20)]
    assert data.read(0).spacing.tolist() == [0.5] * 3 and data.read(0).voxels.shape == (1, 64, 64, 64)
    assert data[0][0].shape == (1, 16, 16, 16) and data[0][2].tolist() == [2.0] * 3
    placed = read_volume(tmp_path / "insula" / "0.nii.gz")
    at = np.linalg.solve(whole.affine.numpy(), (placed.affine @ torch.tensor([31.5, 31.5, 31.5, 1.0], dtype=torch.float64)).numpy())
    assert regions[tuple(at[:3].round().astype(int))] == list(brains.REGIONS).index("insula")


def test_too_few_places_and_a_full_folder_are_named(tmp_path):
    with pytest.raises(ValueError, match="cerebellum: 0 places for 2 cubes: ask for fewer"):
        brains.cut(brain(), brain(), torch.full((40, 44, 48), -1), 2, np.random.default_rng(0), tmp_path)
    (tmp_path / "val").mkdir()
    with pytest.raises(ValueError, match="holds cubes already: give another folder"):
        brains.main(tmp_path)
