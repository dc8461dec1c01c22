"""Presets: default runs on bundled data, and the paper's runs."""

from __future__ import annotations

import difflib
from dataclasses import replace
from typing import Final

from secagg.errors import InvalidParameters
from secagg.training.configuration import (
    CompressionSettings,
    Configuration,
    DataSettings,
    EvaluationSettings,
    LocalTraining,
    Optimizer,
    Scheme,
    ServerSettings,
    Source,
    SumSettings,
)

_NONE: Final = CompressionSettings()
_SQ: Final = CompressionSettings(scheme=Scheme.SCALAR, bits=6, modulus_bits=8, wrap=True)
_PRUNING: Final = CompressionSettings(scheme=Scheme.PRUNING, sparsity="0.9")
_PQ: Final = CompressionSettings(scheme=Scheme.PRODUCT, codewords=16, block_size=9)

_PQ_THIRTY: Final = replace(
    _PQ,
    layers=("conv1.weight=64/3", "conv2.weight=256/9", "conv3.weight=256/9", "head.weight=128/8"),
    vector_bits=6,
    is_lengthened=True,
)
"""Bits by importance: 8 for a block of 9 weights, 2 for a weight of the small first layer, 6 for a bias."""

_FASHION: Final = Configuration(name="fashion")
_VADER: Final = Configuration(
    name="vader",
    rounds=90,
    model="lstm",
    model_options=("width=64", "hidden=64", "layers=1", "pooled=1"),
    data=DataSettings(name="vader", clients=300),
    local=LocalTraining(batch=20, rate=0.5),
    server=ServerSettings(optimizer=Optimizer.FEDAVGM),
    secagg=SumSettings(every=10),
)
_CELEBA: Final = Configuration(
    name="celeba",
    rounds=2550,
    clients_per_round=100,
    model="simple-conv",
    checkpoint_every=85,
    data=DataSettings(name="celeba", clients=0),
    local=LocalTraining(batch=32, rate=0.8991111469452855),
    server=ServerSettings(rate=0.07973798968019044),
    secagg=SumSettings(every=85),
    evaluation=EvaluationSettings(every=17),
)
_FEMNIST: Final = Configuration(
    name="femnist",
    rounds=3195,
    clients_per_round=5,
    model="resnet18",
    checkpoint_every=142,
    data=DataSettings(name="femnist", clients=0),
    local=LocalTraining(batch=32, rate=0.01),
    server=ServerSettings(rate=0.24),
    secagg=SumSettings(every=142),
    evaluation=EvaluationSettings(every=142),
)
_SENT140: Final = Configuration(
    name="sent140",
    rounds=5940,
    clients_per_round=100,
    model="lstm",
    checkpoint_every=119,
    data=DataSettings(name="sent140", clients=0),
    local=LocalTraining(batch=32, rate=5.75),
    server=ServerSettings(rate=0.24),
    secagg=SumSettings(every=119),
    evaluation=EvaluationSettings(every=119),
)


def _family(
    base: Configuration, sq: CompressionSettings, pruning: CompressionSettings, pq: CompressionSettings
) -> None:
    for name, compression in (("none", _NONE), ("sq", sq), ("prune", pruning), ("pq", pq)):
        protocol = "enclave" if compression.scheme is Scheme.PRODUCT else "pairwise"
        run = replace(
            base, name=f"{base.name}-{name}", compression=compression, secagg=replace(base.secagg, protocol=protocol)
        )
        PRESETS[run.name] = run


PRESETS: Final = dict[str, Configuration]()
"""Runs by name. Those on bundled data sum in the clear by default, which gives the same sums."""
_family(_FASHION, _SQ, _PRUNING, _PQ)
_family(_VADER, _SQ, _PRUNING, _PQ)
_paper_pq = replace(_PQ, codewords=8, block_size=9)
_family(_CELEBA, replace(_SQ, bits=7, modulus_bits=10), _PRUNING, _paper_pq)
_family(_FEMNIST, replace(_SQ, bits=7, modulus_bits=10), _PRUNING, _paper_pq)
_family(_SENT140, replace(_SQ, bits=7, modulus_bits=14), _PRUNING, _paper_pq)
# At most one bit per weight for the whole cohort, and the matching uncompressed baseline.
_PEAK: Final = CompressionSettings(scheme=Scheme.PEAK, places=128, refresh=10)
_SKETCH: Final = CompressionSettings(scheme=Scheme.SKETCH, bits=1, refresh=10)
for _name, _compression, _protocol, _chosen in (
    ("peak", _PEAK, "enclave", ()),
    # Clients of a sketch report their lengths as unchecked ring elements.
    ("sketch", _SKETCH, "pairwise", ("mode=semi_honest",)),
):
    PRESETS[f"fashion-{_name}"] = replace(
        _FASHION,
        name=f"fashion-{_name}",
        compression=_compression,
        secagg=replace(_FASHION.secagg, protocol=_protocol, settings=_chosen),
    )
for _name, _places in (("none", 0), ("peak", 256)):
    _run = PRESETS[f"fashion-{_name}"]
    PRESETS[f"fashion-{_name}-falling"] = replace(
        _run,
        name=f"fashion-{_name}-falling",
        compression=replace(_run.compression, places=_places),
        server=replace(_run.server, falling=1 / 3),
    )
PRESETS["fashion-pq30"] = replace(PRESETS["fashion-pq"], name="fashion-pq30", compression=_PQ_THIRTY)
# As in the paper's code: one more client's update in the clear calibrates all clients.
for _name in ("celeba-sq", "celeba-pq"):
    _run = PRESETS[_name]
    PRESETS[f"{_name}-mock"] = replace(
        _run, name=f"{_name}-mock", compression=replace(_run.compression, calibration=Source.MOCK)
    )


def preset(name: str) -> Configuration:
    """Return a run by its name."""
    if name not in PRESETS:
        near = difflib.get_close_matches(name, PRESETS, n=1)
        nearest = f"the nearest is {near[0]!r} among" if near else "the presets are"
        raise InvalidParameters(f"there is no preset {name!r}; {nearest} {', '.join(PRESETS)}")
    return PRESETS[name]
