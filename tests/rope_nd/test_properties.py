"""The measured properties agree with theory where theory is exact."""

import subprocess
import sys
from contextlib import redirect_stdout
from io import StringIO

import pytest
import torch

from rope_nd import RoPE, grid, list_encodings, pictures, tables
from rope_nd.precision import score_error
from rope_nd.properties import build, code, kernel, main, measure

MATRICES = ["liere", "comrope_ap", "comrope_ld", "string_cayley", "string_circulant", "harope"]  # as they begin, all commute
TURNS = ["axial", "interleaved", "mixed", "golden", "simplex", "spiral", "wavelet_rotary", *MATRICES]
FEW = ["sinusoidal", "lookhere", "axial"]


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
    assert drawn == {
        *("learned", "mixed", "t5", "t5_joint", "swin", "fire", "pape", "fope", "simplex", "fourier"),
        *("liere", "comrope_ap", "comrope_ld"),
    }


def test_biases_and_parabolas_have_no_code(found):
    without = {name for name, row in found.items() if row.unique is None}
    assert without == {"alibi", "t5", "t5_joint", "swin", "lookhere", "fire", "pape"}
    assert all(row.unique > 0.001 for row in found.values() if row.unique is not None)


class Generated(RoPE):
    """Axial RoPE as exponentials of matrices, which have no tables."""

    def forward(self, positions, extent=None):
        whirl = torch.tensor([[0.0, -1.0], [1.0, 0.0]], dtype=torch.float64)
        phase = positions.double() @ self.freqs[0].T  # [N, P]
        turn = torch.stack([torch.block_diag(*(angle * whirl for angle in row)) for row in phase]).matrix_exp()  # [N, D, D]

        class Turn:
            def qk(self, q, k):
                return tuple(torch.einsum("nij,...nj->...ni", turn, x.double()).to(x.dtype) for x in (q, k))

        return Turn()


def test_what_turns_by_matrices_without_tables_is_measured_like_the_same_turns_with_them():
    points, extent = grid(4, 4, dtype=torch.float64), (4, 4)
    plain, matrices = RoPE(16, 2), Generated(16, 2)
    torch.testing.assert_close(code(matrices, points, extent), code(plain, points, extent), rtol=0, atol=1e-6)
    torch.testing.assert_close(kernel(matrices, points, points, extent), kernel(plain, points, points, extent), rtol=0, atol=1e-6)
    found, same = (score_error(enc, "e5m2", when="before", extent=extent) for enc in (matrices, plain))
    assert found.relative == pytest.approx(same.relative, rel=1e-4) and found.tokens == pytest.approx(same.tokens, rel=1e-4)
    assert found.bands is None and same.bands is not None


def test_a_rotary_kernel_is_the_mean_cosine_of_the_angles_between():
    points = grid(3, 5, dtype=torch.float64)
    for name in ("axial", "golden", "pope"):
        enc = build(name, 2, (16, 16))
        angle = (points[:, None] - points) @ enc.vectors()[0].T  # [N, N, P]
        ours = kernel(enc, points, points, (16, 16))
        torch.testing.assert_close(ours / ours[0, 0], angle.cos().mean(-1), rtol=0, atol=1e-6)


def test_a_row_is_printed_for_every_encoding_if_none_is_chosen(capsys, monkeypatch):
    for slow in ("rounding", "outliers"):
        monkeypatch.setattr(tables, slow, lambda encodings, extent: [])
    monkeypatch.setattr(tables, "scaled", lambda build, names, trained: {})
    main(["--trained", "8"])
    rows = [line.split(" | ")[0].removeprefix("| ") for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    assert rows[: len(list_encodings())] == ["name", *(name for name in list_encodings() if name != "none")]


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    file = tmp_path_factory.mktemp("page") / "found.md"
    with redirect_stdout(StringIO()) as out:
        main(["--trained", "8", "--markdown", str(file), "--commit", "abc", "--encodings", *FEW])
    (file.parent / "printed").write_text(out.getvalue())
    return file


def test_the_page_has_the_printed_tables_the_pictures_and_how_it_was_made(page):
    text = page.read_text()
    printed = [line for line in (page.parent / "printed").read_text().splitlines() if line.startswith("|")]
    assert printed == [line for line in text.splitlines() if line.startswith("|")] and len(printed) > 25
    assert "python -m rope_nd.properties --trained 8" in text and "Commit abc" in text
    for name in ("kernels", "codes", "precision"):
        assert f"(found/{name}.png)" in text and (page.parent / "found" / f"{name}.png").read_bytes()[:4] == b"\x89PNG"


def test_what_was_written_around_the_tables_is_kept_and_a_page_without_marks_is_refused(tmp_path):
    file, table = tmp_path / "page.md", tables.Table("Title", "Caption.", [{"name": "a", "value": 0.123}])
    tables.write(file, [table], "By hand.")
    file.write_text(f"Before.\n{file.read_text()}\nAfter.\n")
    tables.write(file, [tables.Table("Other", None, [{"name": "b", "value": None}])], "Again.")
    text = file.read_text()
    assert text.startswith("Before.\n") and text.endswith("\nAfter.\n") and "| b | - |" in text
    assert "By hand" not in text and "| a |" not in text
    file.write_text("All mine.\n")
    with pytest.raises(ValueError, match=r"page\.md has no marks"):
        tables.write(file, [table], "Once more.")
    assert file.read_text() == "All mine.\n"


def test_the_same_numbers_give_the_same_pictures_which_say_nothing_of_when_and_by_what(page):
    again, coded = pictures.panels(FEW, 8)
    for name, made in (("kernels", pictures.kernels(again, 8)), ("codes", pictures.codes(coded, 8))):
        assert made == (page.parent / "found" / f"{name}.png").read_bytes()
        assert not any(word in made for word in (b"Software", b"Date", b"tIME", b"atplotlib"))


def test_measuring_needs_no_matplotlib_until_it_draws():
    probe = "import rope_nd.properties, sys; print('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True).stdout == "False\n"
