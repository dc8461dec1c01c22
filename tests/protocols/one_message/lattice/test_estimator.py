"""The hand formula against published estimates, and the moduli that it allows."""

import math
from pathlib import Path

import pytest

from secagg.protocols.one_message.lattice import MARGIN_BITS, REVEALED_SIGMA, Attack, primal_attack, security_bits
from secagg.protocols.one_message.session import greatest_modulus_bits

TERNARY = (2 / 3) ** 0.5


def test_it_agrees_with_the_published_estimate_for_ternary_secrets() -> None:
    # Published: n = 8192, log q = 218, ternary, block size 332, 2^128.3.
    attack = primal_attack(8192, 218, 3.19, TERNARY)
    assert abs(attack.block_size - 332) <= 8
    assert math.isclose(attack.sieving_bits, 128.3, rel_tol=0, abs_tol=0.5)


@pytest.mark.parametrize(("degree", "modulus_bits"), [(1024, 27), (2048, 54), (4096, 109), (8192, 218)])
def test_the_rows_of_the_2018_standard_for_ternary_secrets_are_near_128_bits(degree: int, modulus_bits: int) -> None:
    assert 127.5 < primal_attack(degree, modulus_bits, 3.19, TERNARY).sieving_bits < 132.5


@pytest.mark.parametrize(
    ("degree", "modulus_bits", "block_size", "bits"),
    [(2048, 56, 336, 129.5), (2048, 48, 422, 155), (4096, 104, 360, 138)],
)
def test_the_cells_that_the_parameters_were_chosen_by(
    degree: int, modulus_bits: int, block_size: int, bits: float
) -> None:
    attack = primal_attack(degree, modulus_bits, REVEALED_SIGMA, REVEALED_SIGMA)
    assert abs(attack.block_size - block_size) <= 2
    assert math.isclose(attack.sieving_bits, bits, rel_tol=0, abs_tol=0.7)


def test_the_floor_of_128_bits_has_four_bits_of_margin_by_each_model() -> None:
    assert [greatest_modulus_bits(degree, 128) for degree in (512, 1024, 2048, 4096)] == [15, 28, 54, 105]
    for degree, widest in ((512, 15), (1024, 28), (2048, 54), (4096, 105)):
        attack = primal_attack(degree, widest, REVEALED_SIGMA, REVEALED_SIGMA)
        assert min(attack.sieving_bits, attack.gate_bits) - MARGIN_BITS >= 128 > security_bits(degree, widest + 1)
    # One model alone would allow a bit more.
    attack = primal_attack(2048, 55, REVEALED_SIGMA, REVEALED_SIGMA)
    assert attack.sieving_bits - MARGIN_BITS >= 128 > attack.gate_bits - MARGIN_BITS


def test_gates_are_counted_as_the_lattice_estimator_counts_them() -> None:
    """Kyber-512 by primal_usvp with RC.MATZOV: 2^143.8 at block size 406, dimension 998 of the published run."""
    assert math.isclose(Attack(406, 998).gate_bits, 143.8, rel_tol=0, abs_tol=0.3)


def test_security_falls_with_the_modulus_and_rises_with_the_degree() -> None:
    for degree in (1024, 2048, 4096):
        estimates = [security_bits(degree, bits) for bits in range(16, 108)]
        # Blocks of fewer than about 60 are outside the formula of the root Hermite factor.
        reliable = [bits for bits in estimates if bits > 48]
        assert reliable == sorted(estimates, reverse=True)[: len(reliable)]
    assert security_bits(1024, 40) < security_bits(2048, 40) < security_bits(4096, 40)


def test_no_modulus_keeps_a_floor_beyond_reach() -> None:
    assert greatest_modulus_bits(1024, 2000) == 0


def test_the_readme_has_the_figures_of_every_model(repository: Path) -> None:
    readme = (repository / "protocols/one_message/README.md").read_text(encoding="utf-8")
    for degree, modulus_bits, said in (
        (1024, 28, "28"),
        (2048, 54, "54"),
        (2048, 55, "55, refused"),
        (4096, 105, "105"),
    ):
        attack = primal_attack(degree, modulus_bits, REVEALED_SIGMA, REVEALED_SIGMA)
        models = f"{attack.sieving_bits - MARGIN_BITS:.1f} | {attack.gate_bits - MARGIN_BITS:.1f}"
        cores = ", ".join(f"{rate * attack.block_size:.0f}" for rate in (0.292, 0.265))
        assert f"| {degree} | {said} | {attack.block_size} | {models} | {cores} |\n" in readme
