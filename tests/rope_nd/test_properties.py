"""The measured properties agree with theory where theory is exact."""

import pytest

from rope_nd import list_encodings
from rope_nd.properties import main, measure

TURNS = ["axial", "interleaved", "mixed", "golden", "simplex", "spiral", "wavelet_rotary"]


@pytest.fixture(scope="module")
def found():
    return {name: measure(name) for name in list_encodings() if name != "none"}


def test_a_step_is_a_linear_map_of_rotary_sinusoidal_and_fourier_codes_and_of_no_table_or_bits(found):
    assert all(found[name].linear < 1e-6 for name in (*TURNS, "sinusoidal", "fourier", "fope", "pope"))
    assert all(found[name].linear > 0.02 for name in ("learned", "binary", "hierarchical"))


def test_a_kernel_of_differences_is_the_same_beyond_the_trained_range(found):
    kept = (*TURNS, "sinusoidal", "fourier", "pope", "alibi", "t5", "t5_joint", "swin", "lookhere")
    assert all(found[name].beyond < 1e-5 for name in kept)
    assert all(found[name].beyond > 0.1 for name in ("integer", "learned", "wavelet", "fope"))


def test_raw_integers_grow_with_the_length_and_drown_what_they_are_added_to(found):
    assert found["integer"].noise > 5 and found["integer"].noise_beyond > 3.5 * found["integer"].noise
    assert all(abs(found[n].noise_beyond - found[n].noise) < 0.01 for n in ("sinusoidal", "binary", "fourier", "hierarchical"))


def test_binary_codes_jump_and_sines_do_not(found):
    assert found["binary"].smooth > 1 > 0.5 > found["sinusoidal"].smooth


def test_axial_axes_do_not_mind_each_other_and_free_directions_do(found):
    assert all(found[name].crosstalk < 1e-6 for name in ("axial", "interleaved", "sinusoidal", "binary", "t5"))
    assert all(found[name].crosstalk > 0.1 for name in ("mixed", "golden", "simplex", "spiral", "alibi", "t5_joint", "swin"))


def test_even_directions_are_more_alike_than_two_axes_and_distances_are_alike_in_all(found):
    assert found["spiral"].isotropy < found["simplex"].isotropy < found["golden"].isotropy < found["axial"].isotropy
    assert found["alibi"].isotropy < 1e-6 and found["fire"].isotropy < 1e-6 < found["lookhere"].isotropy


def test_what_is_drawn_or_learned_is_not_determined(found):
    drawn = {name for name, row in found.items() if not row.determined}
    assert drawn == {"learned", "mixed", "t5", "t5_joint", "swin", "fire", "pape", "fope", "simplex", "fourier"}


def test_biases_and_parabolas_have_no_code(found):
    without = {name for name, row in found.items() if row.unique is None}
    assert without == {"alibi", "t5", "t5_joint", "swin", "lookhere", "fire", "pape"}
    assert all(row.unique > 0.001 for row in found.values() if row.unique is not None)


def test_the_command_prints_a_row_an_encoding(capsys, tmp_path):
    main(["--trained", "8", "--markdown", str(tmp_path / "table.md")])
    text = (tmp_path / "table.md").read_text()
    assert text in capsys.readouterr().out and text.count("\n") == len(list_encodings()) - 1 + 2
