"""Configurations: read, changed, refused and written back."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from secagg.errors import InvalidParameters
from secagg.training.configuration import (
    CompressionSettings,
    Configuration,
    Lengths,
    Optimizer,
    Scheme,
    Source,
    changed,
    from_tree,
    read,
    require_belonging,
    to_toml,
    versions_here,
)
from secagg.training.presets import PRESETS, preset

SKETCHED = ("compression.scheme=sketch", "secagg.settings=['mode=semi_honest']")


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_every_preset_survives_being_written_and_read(name: str, tmp_path: Path) -> None:
    file = tmp_path / "configuration.toml"
    file.write_text(to_toml(preset(name), versions_here()))
    assert read(file) == preset(name)


def test_what_is_written_is_toml_with_every_key_and_the_versions() -> None:
    tree = tomllib.loads(to_toml(Configuration(name='a "name"\n\\'), versions_here()))
    assert tree["name"] == 'a "name"\n\\'
    assert tree["compression"]["refresh"] == 1
    assert {"python", "numpy", "torch", "secagg"} <= tree["versions"].keys()


def test_changes_reach_tables_and_take_the_values_of_toml() -> None:
    run = changed(
        Configuration(),
        [
            "rounds=7",
            'compression.layers=["head.weight=plain"]',
            "server.optimizer=fedavgm",
            'dropouts.stages=["share keys", "unmasking"]',
            "local.rate=1",
            "compression.calibration=mock",
            "compression.scheme=sq",
            "local.clip=2.5",
        ],
    )
    assert (run.rounds, run.compression.layers, run.server.optimizer) == (7, ("head.weight=plain",), Optimizer.FEDAVGM)
    assert run.dropouts.stages == ("share keys", "unmasking")
    assert run.local.rate == 1.0
    assert run.local.clip == 2.5
    assert run.compression.source is Source.MOCK


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("compressed.bits=4", "'compression'"),
        ("compression.bit=4", "nearest is 'compression.bits'"),
        ("compression.bits=four", "compression.bits must be an integer"),
        ("compression.wrap=1", "yes or no"),
        ("compression.scheme=jpeg", "none, sq, pruning, pq"),
        ("rounds", "key=value"),
        ("rounds.all=3", "'rounds' in 'rounds.all' is a value"),
        ("rounds=0", "rounds must be a"),
        ("dropouts.rate=nan", "dropouts.rate must be a"),
        ("local.clip=nan", "local.clip must be a"),
        ("local.clip=0.0", "local.clip must be a"),
        ("local.momentum=nan", "local.momentum must be a"),
        ("local.weight_decay=-1.0", "local.weight_decay must be a"),
        ("local.proximal=nan", "local.proximal must be a"),
        ("dropouts.stages=3", "dropouts.stages must be text with commas"),
        ("compression.rotation=100", "power of two"),
        ("compression.sparsity=1.5", "sparsity"),
        ("compression=3", "must be a table"),
        ('model_options=["width"]', "such as"),
    ],
)
def test_a_change_that_makes_no_sense_is_refused(change: str, message: str) -> None:
    with pytest.raises(InvalidParameters, match=message):
        changed(Configuration(), [change])


def test_a_file_that_is_no_toml_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text("rounds = [")
    with pytest.raises(InvalidParameters, match="not a configuration"):
        read(file)


def test_a_missing_table_has_its_defaults() -> None:
    assert from_tree({"rounds": 3}) == changed(Configuration(), ["rounds=3"])


def test_a_key_like_none_is_answered_with_those_there_are() -> None:
    with pytest.raises(InvalidParameters, match="the keys are "):
        changed(preset("fashion-none"), ["data.zzzzzz=1"])
    with pytest.raises(InvalidParameters, match="the presets are fashion"):
        preset("zzzzzz")


@pytest.mark.parametrize("scheme", Scheme)
def test_a_key_of_another_scheme_is_refused_and_its_usual_value_is_not(scheme: Scheme) -> None:
    told = {"scheme": scheme, "custom": "a:b" if scheme is Scheme.CUSTOM else ""}
    require_belonging(CompressionSettings(**told))  # type: ignore[arg-type]
    refused = {
        name
        for name, value in UNUSUAL.items()
        if is_refused(CompressionSettings(**told, **{name: value}))  # type: ignore[arg-type]
    }
    assert set(UNUSUAL) - refused == READ[scheme]


def is_refused(settings: CompressionSettings) -> bool:
    try:
        require_belonging(settings)
    except InvalidParameters:
        return True
    return False


UNUSUAL: dict[str, object] = {
    "cohort_bits": 2.0,
    "places": 8,
    "kept": 9,
    "lengths": Lengths.FIXED,
    "bits": 4,
    "modulus_bits": 16,
    "wrap": True,
    "stochastic": True,
    "sparsity": "0.5",
    "codewords": 16,
    "block_size": 9,
    "stages": 2,
    "rotation": 64,
    "calibration": Source.MOCK,
    "refresh": 2,
    "fraction_bits": 16,
    "layers": ("a=plain",),
}
READ: dict[Scheme, set[str]] = {
    Scheme.NONE: {"fraction_bits"},
    Scheme.SCALAR: {
        *("bits", "modulus_bits", "wrap", "stochastic", "rotation", "calibration", "refresh", "fraction_bits", "layers")
    },
    Scheme.PRUNING: {"sparsity", "refresh", "fraction_bits", "layers"},
    Scheme.PRODUCT: {"codewords", "block_size", "stages", "calibration", "refresh", "fraction_bits", "layers"},
    Scheme.PEAK: {"cohort_bits", "places", "lengths", "refresh"},
    Scheme.SKETCH: {"cohort_bits", "kept", "lengths", "bits", "refresh"},
    Scheme.ROTATED: {"modulus_bits", "fraction_bits"},
    Scheme.CUSTOM: set(),
}


ROUNDED = ("compression.scheme=sq", "compression.fine_bits=8", "compression.modulus_bits=16", "compression.wrap=false")
PEAK = ("compression.scheme=peak", "secagg.protocol=enclave")
REFUSED = {
    "fashion-none": [
        (("compression.scheme=sq", "compression.calibration=prior"), "stat"),
        (("compression.scheme=pq", "compression.calibration=stat", "secagg.protocol=enclave"), "prior"),
        (("compression.scheme=pq", "secagg.protocol=pairwise"), "enclave"),
        # Values that are not rounded under the mask.
        ((*ROUNDED, "compression.scheme=pruning"), "set compression.scheme = 'sq'"),
        ((*ROUNDED, "compression.wrap=true"), "set compression.wrap = false"),
        ((*ROUNDED, "compression.stochastic=true"), "set compression.stochastic = false"),
        ((*ROUNDED, "secagg.protocol=two-servers"), "two-servers does not round: set secagg.protocol = 'pairwise'"),
        ((*ROUNDED, "compression.fine_bits=25"), "compression.fine_bits must be an integer between 0 and 24"),
        # Settings without effect.
        (("compression.bits=4",), "to compression.scheme = 'sq' or 'sketch'"),
        (("compression.scheme=pruning", "compression.bits=4"), "not to 'pruning'"),
        (("compression.scheme=pruning", "compression.places=2"), "set 0, or change the scheme"),
        (("compression.lengths=own",), "remove it, or change the scheme"),
        ((*SKETCHED, "compression.length=2"), "set compression.lengths = 'fixed'"),
        ((*SKETCHED, "compression.cohort_bits=2", "compression.kept=3"), "remove compression.places and kept"),
        # Whole updates.
        (("compression.scheme=peak",), "'peak' sends indices"),
        (("compression.scheme=sketch", "compression.bits=9"), "codes must have 1 to 8 bits"),
        (("compression.scheme=sketch", "server.optimizer=fedavgm"), "noise of 'sketch', by 10"),
        (("compression.scheme=custom",), "set only the former"),
        (("compression.custom=a:b",), "set only the former"),
        (("compression.rate=auto",), "'peak'"),
        ((*PEAK, "compression.harm=0.1"), "compression.rate = 'auto'"),
        ((*PEAK, "compression.rate=auto", "compression.cohort_bits=3.0"), "finds the bits itself"),
        ((*PEAK, "compression.rate=auto", "compression.places=3"), "finds the bits itself"),
        (("compression.scheme=sketch", "compression.lengths=voted", "secagg.protocol=enclave"), "voting needs blocks"),
        # Unchecked lengths.
        (("compression.scheme=sketch",), "set compression.lengths = 'fixed', or secagg.settings"),
        (("compression.scheme=sketch", "secagg.protocol=enclave"), "'median' or 'fixed'"),
        (("compression.scheme=sketch", "secagg.protocol=one-message"), "'fixed'"),
        (("compression.scheme=sketch", "compression.lengths=median"), "votes for lengths are indices"),
        (("attack.kind=shout",), "attack.kind must be one of none, sign-flip"),
        (("attack.share=1.5",), "attack.share must be a"),
    ],
    "fashion-pq": [
        (("compression.scheme=pruning", "compression.vector_bits=6"), "vector_bits needs scales"),
        (("compression.calibration=mock", "compression.vector_bits=6"), "vector_bits needs scales"),
        (("compression.vector_bits=17",), "compression.vector_bits must be an integer between 0 and 16"),
        (("compression.calibration=mock", "compression.is_lengthened=true"), "data-free codebooks"),
        (("compression.scheme=sq", "compression.is_lengthened=true"), "data-free codebooks"),
    ],
}


@pytest.mark.parametrize(
    ("name", "changes", "message"), [(name, *row) for name, rows in REFUSED.items() for row in rows]
)
def test_what_does_not_go_together_is_refused_with_what_does(name: str, changes: tuple[str, ...], message: str) -> None:
    with pytest.raises(InvalidParameters, match=message):
        changed(preset(name), changes)


def test_what_is_rounded_under_the_mask_is_taken() -> None:
    changed(preset("fashion-none"), ROUNDED)
